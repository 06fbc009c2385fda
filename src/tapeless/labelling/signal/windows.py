"""Windows over a signal, and how what was predicted in overlapping ones becomes one answer per position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.models.config import check_size
from tapeless.ops.contract import Array


@dataclass(frozen=True)
class Windows:
    """Windows of `window` positions, `step` apart, that cover all `length` positions.

    The last one is moved back so that it ends where the signal does. A signal shorter than a window is one window of
    the signal's own length (`size`): nothing is made up to fill it.
    """

    length: int
    window: int
    step: int

    def __post_init__(self) -> None:
        for name in ("length", "window", "step"):
            check_size(name, getattr(self, name))
        if self.step > self.window:
            raise TapelessError(
                f"step={self.step} is more than window={self.window} and would leave gaps: use at most {self.window}."
            )

    @property
    def size(self) -> int:
        """Of a window: shorter where all there is is shorter."""
        return min(self.window, self.length)

    def __len__(self) -> int:
        return 1 + -(-(self.length - self.size) // self.step)

    def start(self, number: int) -> int:
        """The first position of a window."""
        return min(number * self.step, self.length - self.size)

    def __iter__(self) -> Iterator[int]:
        return (self.start(number) for number in range(len(self)))


def window_weights(size: int) -> Array:
    """How much each position of a window is trusted: 1, 2, 3, … up to the middle and down again, never zero."""
    rising = np.arange(1, size + 1)
    return np.minimum(rising, rising[::-1]).astype(np.float64)


def blend(predictions: Iterable[Array], windows: Windows) -> Iterator[tuple[int, Array]]:
    """The weighted mean, Σ w·p / Σ w, over all windows that hold a position, as (first position, values (n, classes)).

    `predictions`: (size, classes) for each window in order. Positions are given out as soon as no later window holds
    them, so no more than one window's are kept. The mean is a running one: where there is only one window, or where
    all agree, the answer is theirs to the last bit.
    """
    weights = window_weights(windows.size)
    coming = iter(predictions)
    mean, total, first = np.zeros((0, 0)), np.zeros(0), 0
    for start in windows:
        values = next(coming, None)
        if values is None:
            raise TapelessError(
                f"predictions end before the window at {start}: there must be {len(windows):,} of them."
            )
        values = _checked(values, windows.size, mean.shape[1])
        if start > first:
            yield first, mean[: start - first]
        kept = len(mean) - (start - first)
        mean, total, first = _moved(mean, kept, values.shape), _moved(total, kept, weights.shape), start
        total += weights
        mean += (values - mean) * (weights / total)[:, None]
    if next(coming, None) is not None:
        raise TapelessError(f"there are more predictions than the {len(windows):,} windows.")
    yield first, mean


def _moved(values: Array, kept: int, shape: tuple[int, ...]) -> Array:
    """The last `kept` rows in front of zeros: what the next window shares with those before it."""
    found = np.zeros(shape)
    if kept > 0:
        found[:kept] = values[len(values) - kept :]
    return found


def _checked(values: Array, size: int, classes: int) -> Array:
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or len(values) != size or values.shape[1] != (classes or values.shape[1]):
        wanted = (size, classes or "classes")
        raise TapelessError(f"predictions must have the shape {spelled(wanted)}, not {spelled(values.shape)}.")
    return values
