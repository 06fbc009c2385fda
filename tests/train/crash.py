"""Saves checkpoints without end, to be killed while it does: `python crash.py FOLDER`.

Each says in its state which step it is and at which attempt it was saved, and its tensors follow from these two, so
that whatever is found later can be told to be right or wrong.
"""

import sys
from pathlib import Path

import numpy as np

from tapeless.train import checkpoint

SIZES = {"weights": 20_000, "optimizer": 40_000}


def state_of(step, attempt):
    return {"step": step, "attempt": attempt, "loss": 1 / (step + 1)}


def tensors_of(step, attempt, sizes):
    starts = {stem: np.float32(1000 * step + 10 * attempt + place) for place, stem in enumerate(sizes)}
    return {stem: {"w": starts[stem] + np.arange(sizes[stem], dtype=np.float32)} for stem in sizes}


def save(folder, step, attempt=0, sizes=SIZES, **options):
    return checkpoint.save(folder, step, tensors_of(step, attempt, sizes), state_of(step, attempt), **options)


def assert_right(found, sizes=SIZES):
    """It holds what was saved at its step and attempt, to the bit."""
    attempt = found.state["attempt"]
    assert found.state == state_of(found.step, attempt)
    for stem, arrays in tensors_of(found.step, attempt, sizes).items():
        np.testing.assert_array_equal(found.tensors(stem)["w"], arrays["w"])


def main():
    folder = Path(sys.argv[1])
    found, messages = checkpoint.newest(folder)
    if messages:
        sys.exit(f"a kill left damage: {messages}")
    step = found.step if found else 0
    print("started", step, 0, flush=True)
    while True:
        step += 1
        for attempt in range(1 + (step % 3 == 0)):  # every third step is saved again
            save(folder, step, attempt, keep=2, best=step % 4 == 0)
            print("saved", step, attempt, flush=True)


if __name__ == "__main__":
    main()
