"""`make recording`: what a recorded step costs beside a plain one, the two in turn."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from tapeless import Model
from tapeless.train.history.record import encoded
from tapeless.train.history.recording import COST, StepRecording

CASES = (("ops-102k", 32, 8, 300), ("gpt2-4x256", 1, 1024, 8))  # preset, batch, time, rounds


def main() -> None:
    for preset, batch, length, rounds in CASES:
        model = Model(preset, batch=batch, time=length)
        rng = np.random.default_rng(0)
        inputs = rng.integers(0, model.config.vocab, (batch, length))
        answers = (batch,) if model.config.readout == "last" else (batch, length)
        targets = rng.integers(0, model.config.vocab, answers)
        plain, recorded = [], []
        with tempfile.TemporaryDirectory() as folder:
            recording = StepRecording(Path(folder), model)
            for number in range(1, rounds + 1):
                begun = time.perf_counter()
                _ = model.step(inputs, targets, lr=1e-4, clip=1.0).loss
                between = time.perf_counter()
                walk, made = model.walk_step(inputs, targets, lr=1e-4, clip=1.0)
                recording.see(number, 1e-4, walk, made)
                plain.append(between - begun)
                recorded.append(time.perf_counter() - between)
        size = len(encoded(1, 1.0, 1.0, 1.0, recording._values))
        ratio = median(walked / run for run, walked in zip(plain, recorded, strict=True))
        every = max(1, round((ratio - 1) / COST))
        print(
            f"{preset} {batch}×{length}: a step {1000 * median(plain):.2f} ms, recorded {ratio:.2f}×; at {COST:.0%} of "
            f"the time about one step in {every} is recorded, {size:,} bytes each"
        )


if __name__ == "__main__":
    main()
