"""`make scaling`: how the step's time grows with batch and with time, drawn to docs/scaling.svg."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from tapeless import Model
from tapeless.pictures.svg import OURS, QUIET, Panel, Points, picture, text

PICTURE = Path(__file__).parents[1] / "docs" / "scaling.svg"
PRESET = "gpt2-4x256"
BATCHES, TIMES = (1, 2, 4, 8), (128, 256, 512, 1024, 2048)


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


def growth(title: str, left: float, points: Points, names: Sequence[str], across: str) -> list[str]:
    """How a cost grows from its first point on, on logarithmic axes, beside what is in proportion (dashed)."""
    first_x, first_y = points[0]
    ratios = [(x, y / first_y) for x, y in points]
    last = points[-1][0]
    heights = [last / first_x, *(ratio for _, ratio in ratios)]
    span = (min(heights), max(heights))
    panel = Panel(title, left + 45, 50, 310, 190, (first_x, last), span, log_x=True, log_y=True)
    parts = panel.named_frame([(x, name) for (x, _), name in zip(points, names, strict=True)], [], across)
    parts += panel.line([(first_x, 1.0), (last, last / first_x)], QUIET, dash="4 4", dots=False)
    parts += panel.line(ratios, OURS)
    for point in ratios[1:]:
        x, y = panel.place(*point)
        parts.append(text(x - 4, y - 8, f"{point[1]:.3g}×", "end"))
    return parts


def main() -> None:
    parts = []
    for number, (title, works) in enumerate(
        (("batch, at T = 128", [(batch, 128) for batch in BATCHES]), ("T, at batch 1", [(1, time) for time in TIMES]))
    ):
        points: list[tuple[float, float]] = []
        for batch, time in works:
            points.append((batch * time, step_ms(batch, time)))
            print(f"batch {batch}, time {time}: {points[-1][1] / points[0][1]:.2f} of the first", flush=True)
        names = [f"{tokens:g}" for tokens, _ in points]
        parts += growth(
            f"{PRESET}: step over {title}", 390 * number, points, names, "tokens a step; dashed: in proportion"
        )
    PICTURE.write_text(picture(780, 290, parts), encoding="utf-8")
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
