"""`make scaling`: how the step's time grows with batch and with time, drawn to docs/scaling.svg."""

from __future__ import annotations

import time as clock
from pathlib import Path
from statistics import median

import numpy as np

from tapeless import Model

PICTURE = Path(__file__).parents[1] / "docs" / "scaling.svg"
PRESET = "gpt2-4x256"
BATCHES, TIMES = (1, 2, 4, 8), (128, 256, 512, 1024, 2048)
WIDTH, HEIGHT, MARGIN = 380, 280, 50


def step_ms(batch: int, time: int) -> float:
    model = Model(PRESET, batch=batch, time=time, context=2048, backend="cpu")
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, (batch, time + 1))
    found = []
    for _ in range(4):
        start = clock.perf_counter()
        model.forward_backward(tokens[:, :-1], tokens[:, 1:])
        model.update(1e-4, clip=1.0)
        found.append(1000 * (clock.perf_counter() - start))
    return median(found[1:])


def main() -> None:
    panels = []
    for title, works in (
        ("batch, at T = 128", [(batch, 128) for batch in BATCHES]),
        ("T, at batch 1", [(1, time) for time in TIMES]),
    ):
        points = []
        for batch, time in works:
            points.append((batch * time, step_ms(batch, time)))
            print(f"batch {batch}, time {time}: {points[-1][1] / points[0][1]:.2f} of the first", flush=True)
        panels.append((title, points))
    PICTURE.write_text(drawing(panels), encoding="utf-8")
    print(f"written to {PICTURE}")


def drawing(panels: list[tuple[str, list[tuple[int, float]]]]) -> str:
    """Two log-log panels: the step relative to its first point, over tokens, beside a straight line."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, points) in enumerate(panels):
        parts.append(panel(title, points, number * WIDTH))
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(title: str, points: list[tuple[int, float]], left: int) -> str:
    first_tokens, first_ms = points[0]
    span = max(points[-1][0] / first_tokens, points[-1][1] / first_ms)

    def place(tokens: float, ratio: float) -> tuple[float, float]:
        x = left + MARGIN + (WIDTH - 2 * MARGIN) * np.log(tokens / first_tokens) / np.log(span)
        return float(x), float(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * np.log(ratio) / np.log(span))

    measured = [place(tokens, ms / first_ms) for tokens, ms in points]
    ideal = [place(tokens, tokens / first_tokens) for tokens, _ in points]
    lines = [f'<text x="{left + MARGIN}" y="24">{PRESET}: step over {title}</text>']
    for at, colour, dash in ((ideal, "#999", "4 4"), (measured, "#0a7", "")):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
    for (tokens, ms), (x, y) in zip(points, measured, strict=True):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#0a7"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{tokens}</text>')
        lines.append(f'<text x="{x - 6:.1f}" y="{y - 6:.1f}" text-anchor="end">{ms / first_ms:.1f}×</text>')
    lines.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">tokens a step</text>')
    return "\n".join(lines)


if __name__ == "__main__":
    main()
