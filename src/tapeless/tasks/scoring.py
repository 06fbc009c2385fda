"""How well a model foretells a text, all of it: every token once, from as much of what stands before it as a sliding
window shows; and what an assistant says in conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import Packed
from tapeless.model import Model
from tapeless.models.config import check_size
from tapeless.ops.contract import Array
from tapeless.tasks.chat.packing import PackedRows, every_row
from tapeless.tasks.data.batches import IGNORED
from tapeless.tasks.data.tokens import Tokens
from tapeless.tasks.operations import score_totals
from tapeless.tasks.task import Measured

AT_ONCE = 1 << 24  # scores that exist together
MOST_ROWS = 16
LARGEST_POWER = 700.0  # of e that a float holds


@dataclass(frozen=True)
class Scored:
    """What a text cost to foretell. `targets` is how many tokens were scored, each once."""

    targets: int
    loss: float  # the model's own, mean over targets
    cross_entropy: float  # in nats, mean over targets; the same, unless the model learned by squared error
    accuracy: float
    window: int  # positions that the model reads at a time
    stride: int  # by which the window moves on

    @property
    def least_context(self) -> int:
        """Tokens from which each is foretold at least, save at the beginning, where there are no more."""
        return min(self.window - self.stride + 1, self.targets)

    @property
    def perplexity(self) -> float:
        return exp(self.cross_entropy) if self.cross_entropy < LARGEST_POWER else inf

    def bits_per_byte(self, size: int) -> float:
        """`size`: of the text in bytes, however many tokens it is."""
        return self.cross_entropy * self.targets / log(2) / size


def score_text(
    model: Model,
    tokens: Tokens,
    window: int,
    *,
    stride: int | None = None,
    start: int | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Scored:
    """`start` stands before the first token, so that it is foretold too; without it the first is only read. The window
    moves by half its length, or by `stride`: by less, tokens have more before them, and it takes longer. `told` hears
    how many tokens are done."""
    check_size("window", window)
    stride = max(window // 2, 1) if stride is None else stride
    check_size("stride", stride)
    if stride > window:
        raise TapelessError(f"stride={stride} would leap over tokens: the window has {window} positions.")
    count = len(tokens) - (start is None)
    if count < 1:
        raise TapelessError(f"there are {len(tokens)} tokens to score, and none is foretold: give more text.")
    first = [] if start is None else [start]
    begins = [*range(0, max(count - window, 0), stride), max(count - window, 0)]
    rows = _together(model, len(begins), window)
    totals, done = np.zeros(3), 0
    for at in range(0, len(begins), rows):
        inputs = np.zeros((rows, window), np.int64)
        targets = np.full((rows, window), IGNORED, np.int64)
        for row, begin in enumerate(begins[at : at + rows]):
            seen = _read(tokens, first, begin, min(window, count) + 1)
            inputs[row, : len(seen) - 1] = seen[:-1]
            fresh = done - begin  # what the window before has not scored
            targets[row, fresh : len(seen) - 1] = seen[fresh + 1 :]
            done = begin + len(seen) - 1
        totals += _worth(model, inputs, targets)
        told(done)
    return _scored(count, totals, window, stride)


def score_rows(model: Model, rows: PackedRows, told: Callable[[int], None] = lambda done: None) -> Scored:
    """The assistant's words of conversations, each foretold from all that stands before it in its own. `told` hears
    how many rows are done."""
    together = _together(model, len(rows), rows.time)
    totals, count, done = np.zeros(3), 0, 0
    for inputs, targets in every_row(rows, together):
        totals += _worth(model, inputs, targets)
        count += int(np.count_nonzero(targets >= 0))
        done = min(done + together, len(rows))
        told(done)
    return _scored(count, totals, rows.time, rows.time)


def measure(model: Model, batches: Iterable[tuple[Any, Array]]) -> Measured:
    """A mean over all targets of some batches. A loss that is a distance says little by itself, so then also how often
    the nearest embedding is the right one."""
    totals, count = np.zeros(3), 0
    distance = model.config.loss == "squared_error"
    for inputs, targets in batches:
        here = int(np.count_nonzero(targets >= 0))
        count += here
        totals += _worth(model, inputs, targets) if distance else model.loss(inputs, targets) * here
    loss, accuracy, cross_entropy = (float(total) / count for total in totals)
    return Measured(loss, accuracy, cross_entropy=cross_entropy) if distance else Measured(loss)


def _together(model: Model, rows: int, window: int) -> int:
    return max(1, min(MOST_ROWS, rows, AT_ONCE // (window * model.config.vocab)))


def _worth(model: Model, inputs: Array | Packed, targets: Array) -> Array:
    totals = np.zeros(3)
    for scores, wanted in zip(model.logits(inputs), targets, strict=True):
        known = wanted >= 0
        if known.any():
            totals += score_totals(model.config, scores[known], wanted[known])
    return totals


def _scored(count: int, totals: Array, window: int, stride: int) -> Scored:
    loss, accuracy, surprise = (float(total) / count for total in totals)
    return Scored(count, loss, surprise, accuracy, window, stride)


def _read(tokens: Tokens, first: list[int], begin: int, length: int) -> Array:
    """Of the tokens with `first` before them."""
    head = first[begin : begin + length]
    rest = tokens.window(max(begin - len(first), 0), length - len(head))
    return np.concatenate([np.array(head, np.int64), rest])
