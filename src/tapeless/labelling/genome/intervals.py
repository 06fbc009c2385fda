"""Stretches of bases as arrays (k, 2): starts and ends, 0-based and half-open, in order, none touching another."""

from __future__ import annotations

import numpy as np

from tapeless.ops.contract import Array


def runs(mask: Array) -> Array:
    """Where a 1-D mask is true."""
    padded = np.zeros(len(mask) + 2, np.int8)
    padded[1:-1] = mask != 0
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)


def mask(intervals: Array, length: int) -> Array:
    """uint8, 1 inside the intervals: the inverse of `runs`."""
    steps = np.zeros(length + 1, np.int8)
    steps[intervals[:, 0]] += 1
    steps[intervals[:, 1]] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).view(np.uint8)


def merged(pairs: Array) -> tuple[Array, int]:
    """Any (start, end) pairs as intervals, those that overlap or touch made one; and how many overlapped an earlier."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    reached = np.maximum.accumulate(pairs[:, 1])
    overlapping = int(np.count_nonzero(pairs[1:, 0] < reached[:-1]))
    opens = np.concatenate(([True], pairs[1:, 0] > reached[:-1]))[: len(pairs)]
    closes = np.concatenate((opens[1:], [True]))[: len(pairs)]
    return np.stack((pairs[opens, 0], reached[closes]), axis=1), overlapping
