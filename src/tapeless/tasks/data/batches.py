"""Windows of tokens as batches: shuffled and endless to train on, fixed to evaluate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import check_seed
from tapeless.models.config import check_size
from tapeless.ops.contract import Array
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.data.tokens import Tokens
from tapeless.tasks.epochs import Epochs

IGNORED = -1  # the target that counts for nothing


class Batches(Epochs):
    """Inputs and targets (B, T), int64, without end.

    An epoch is as many whole batches of adjoining windows as the tokens hold; each window comes once, in an order
    drawn from seed and epoch. Where the first window begins is drawn too, so that the few tokens that fill no batch
    are others in each epoch.
    """

    def __init__(self, tokens: Tokens, batch: int, time: int, seed: int) -> None:
        check_size("batch", batch)
        check_size("time", time)
        check_seed(seed)
        steps = (len(tokens) - 1) // (batch * time)
        if steps < 1:
            raise TapelessError(
                f"a batch of {batch} × {time} needs {batch * time + 1:,} tokens, and there are {len(tokens):,}: "
                f"make batch or time smaller, or give more text."
            )
        self._tokens, self._time, self._seed = tokens, int(time), int(seed)
        super().__init__(steps, tokens=len(tokens), batch=int(batch), time=int(time), seed=int(seed))

    def draw(self, epoch: int) -> Array:
        windows = self.steps_per_epoch * self._batch
        spare = len(self._tokens) - 1 - windows * self._time
        bits = random_bits(self._seed, epoch)
        offset = bits.random_raw() % (spare + 1)
        return offset + order(bits, windows) * self._time

    def make(self, chosen: Array) -> tuple[Array, Array]:
        windows = np.stack([self._tokens.window(int(start), self._time + 1) for start in chosen])
        return windows[:, :-1].copy(), windows[:, 1:].copy()


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
