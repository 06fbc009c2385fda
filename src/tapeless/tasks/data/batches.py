"""Windows of tokens as batches: shuffled and endless to train on, fixed to evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import check_seed
from tapeless.models.config import check_size
from tapeless.ops.contract import Array
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.data.tokens import Tokens

IGNORED = -1  # the target that counts for nothing


class Batches:
    """Inputs and targets (B, T), int64, without end.

    An epoch is as many whole batches of adjoining windows as the tokens hold; each window comes once, in an order
    drawn from seed and epoch. Where the first window begins is drawn too, so that the few tokens that fill no batch
    are others in each epoch.
    """

    def __init__(self, tokens: Tokens, batch: int, time: int, seed: int) -> None:
        check_size("batch", batch)
        check_size("time", time)
        check_seed(seed)
        self.steps_per_epoch = (len(tokens) - 1) // (batch * time)
        if self.steps_per_epoch < 1:
            raise TapelessError(
                f"a batch of {batch} × {time} needs {batch * time + 1:,} tokens, and there are {len(tokens):,}: "
                f"make batch or time smaller, or give more text."
            )
        self._tokens, self._batch, self._time, self._seed = tokens, int(batch), int(time), int(seed)
        self._begin(epoch=0, step=0)

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self._epoch + self._step // self.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return self

    def __next__(self) -> tuple[Array, Array]:
        if self._step == self.steps_per_epoch:
            self._begin(self._epoch + 1, step=0)
        chosen = self._starts[self._step * self._batch :][: self._batch]
        windows = np.stack([self._tokens.window(int(start), self._time + 1) for start in chosen])
        self._step += 1
        return windows[:, :-1].copy(), windows[:, 1:].copy()

    def state(self) -> dict[str, int]:
        """The position, and what it is a position in: plain numbers, for a checkpoint."""
        return {**self._identity(), "epoch": self._epoch, "step": self._step}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        for name, here in self._identity().items():
            if state.get(name) != here:
                raise TapelessError(
                    f"the position is one in data with {name}={repr(state.get(name))[:40]}, and here {name}={here}: "
                    f"resume with the same data, batch, time and seed."
                )
        for name, most in (("epoch", None), ("step", self.steps_per_epoch)):
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (most and value > most):
                raise TapelessError(f"the position in the data is damaged: {name} is {repr(value)[:40]}.")
        self._begin(state["epoch"], state["step"])

    def _identity(self) -> dict[str, int]:
        return {"tokens": len(self._tokens), "batch": self._batch, "time": self._time, "seed": self._seed}

    def _begin(self, epoch: int, step: int) -> None:
        windows = self.steps_per_epoch * self._batch
        spare = len(self._tokens) - 1 - windows * self._time
        bits = random_bits(self._seed, epoch)
        offset = bits.random_raw() % (spare + 1)
        self._starts = offset + order(bits, windows) * self._time
        self._epoch, self._step = epoch, step


def evaluation_batches(
    tokens: Tokens, batch: int, time: int, limit: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Every target once, in order, in windows that do not overlap; what is missing in the last has target −1.

    With a `limit` there are at most so many batches, of windows spread evenly over the whole.
    """
    check_size("batch", batch)
    check_size("time", time)
    if limit is not None:
        check_size("limit", limit)
    if len(tokens) < 2:
        raise TapelessError(f"there are {len(tokens)} tokens to evaluate on, and a target needs 2: hold out more.")
    return _evaluation_batches(tokens, batch, time, limit)


def _evaluation_batches(tokens: Tokens, batch: int, time: int, limit: int | None) -> Iterator[tuple[Array, Array]]:
    windows = -(-(len(tokens) - 1) // time)
    chosen = windows if limit is None else min(windows, limit * batch)
    for first in range(0, chosen, batch):
        inputs = np.zeros((batch, time), np.int64)
        targets = np.full((batch, time), IGNORED, np.int64)
        for row, number in enumerate(range(first, min(first + batch, chosen))):
            start = number * windows // chosen * time
            window = tokens.window(start, min(time + 1, len(tokens) - start))
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        yield inputs, targets
