"""`make scaling`: how the step's time grows with batch and with time, drawn to docs/scaling.svg."""

from __future__ import annotations

import time as clock
from pathlib import Path
from statistics import median

import numpy as np

from tapeless import Model
from tapeless.pictures.svg import growth, picture

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
