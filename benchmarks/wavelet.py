"""`python benchmarks/wavelet.py`: how the time and memory of wavelet features grow with a signal's length, and the time
with the scale, drawn to docs/wavelet.svg."""

from __future__ import annotations

import time as clock
import tracemalloc
from pathlib import Path

import numpy as np

from tapeless.signal.wavelet import SCALES, feature_blocks

PICTURE = Path(__file__).parents[1] / "docs" / "wavelet.svg"
LENGTHS = tuple(1 << power for power in range(14, 23))
SCALE_LENGTH = 1 << 18
ONE_SCALE = tuple(4.0 * 4**power for power in range(7))
WIDTH, HEIGHT, MARGIN = 400, 300, 55
Points = list[tuple[float, float]]


def seconds(signal: np.ndarray, scales: tuple[float, ...]) -> float:
    """The best of three: what else the machine does only ever adds."""
    found = []
    for _ in range(3):
        start = clock.perf_counter()
        for _ in feature_blocks(signal, scales):
            pass
        found.append(clock.perf_counter() - start)
    return min(found)


def peak_bytes(signal: np.ndarray) -> int:
    tracemalloc.start()
    for _ in feature_blocks(signal, SCALES):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    noise = np.random.default_rng(0).normal(size=LENGTHS[-1])
    over_length = [(float(length), seconds(noise[:length], SCALES)) for length in LENGTHS]
    for length, took in over_length:
        peak = peak_bytes(noise[: int(length)]) / 2**20
        print(f"{int(length):>9,} samples: {1e9 * took / length:7.1f} ns a sample, {peak:.1f} MiB at most", flush=True)
    over_scale = [(scale, seconds(noise[:SCALE_LENGTH], (scale,))) for scale in ONE_SCALE]
    for scale, took in over_scale:
        print(f"scale {scale:>7g}: {took / over_scale[0][1]:.2f} of the first", flush=True)
    panels = [
        (f"{len(SCALES)} scales, over samples", over_length),
        (f"{SCALE_LENGTH:,} samples, over the scale", over_scale),
    ]
    PICTURE.write_text(drawing(panels), encoding="utf-8")
    print(f"written to {PICTURE}")


def drawing(panels: list[tuple[str, Points]]) -> str:
    """Log-log panels: time relative to the first point, beside a straight line (dashed)."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(panels) * WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    parts += [panel(title, points, number * WIDTH) for number, (title, points) in enumerate(panels)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(title: str, points: Points, left: int) -> str:
    first, first_seconds = points[0]
    span = points[-1][0] / first

    def place(at: float, ratio: float) -> tuple[float, float]:
        x = left + MARGIN + (WIDTH - 2 * MARGIN) * np.log(at / first) / np.log(span)
        return float(x), float(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * np.log(ratio) / np.log(span))

    measured = [place(at, took / first_seconds) for at, took in points]
    straight = [place(at, at / first) for at, _ in points]
    lines = [f'<text x="{left + MARGIN}" y="24">Morlet features: time for {title}</text>']
    for places, colour, dash in ((straight, "#999", "4 4"), (measured, "#0a7", "")):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
    for (at, took), (x, y) in zip(points, measured, strict=True):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#0a7"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{short(at)}</text>')
        lines.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{took / first_seconds:.3g}×</text>')
    lines.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">dashed: in proportion</text>')
    return "\n".join(lines)


def short(number: float) -> str:
    for size, letter in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if number >= size:
            return f"{number / size:g} {letter}"
    return f"{number:g}"


if __name__ == "__main__":
    main()
