"""`python benchmarks/wavelet.py`: how the time and memory of wavelet features grow with a signal's length, and the time
with the scale, drawn to docs/wavelet.svg."""

from __future__ import annotations

import time as clock
import tracemalloc
from pathlib import Path

import numpy as np
from scaling import growth

from tapeless.labelling.signal.wavelet import SCALES, feature_blocks
from tapeless.pictures.svg import picture

PICTURE = Path(__file__).parents[1] / "docs" / "wavelet.svg"
LENGTHS = tuple(1 << power for power in range(14, 23))
SCALE_LENGTH = 1 << 18
ONE_SCALE = tuple(4.0 * 4**power for power in range(7))


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
        (f"over samples, {len(SCALES)} scales", over_length),
        (f"over the scale, {SCALE_LENGTH >> 10} Ki samples", over_scale),
    ]
    parts = []
    for number, (title, points) in enumerate(panels):
        names = [short(at) if index % 2 == 0 else "" for index, (at, _) in enumerate(points)]
        parts += growth(f"wavelets: time {title}", 390 * number, points, names, "dashed: in proportion")
    PICTURE.write_text(picture(780, 290, parts), encoding="utf-8")
    print(f"written to {PICTURE}")


def short(number: float) -> str:
    for size, letter in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if number >= size:
            return f"{number / size:g} {letter}"
    return f"{number:g}"


if __name__ == "__main__":
    main()
