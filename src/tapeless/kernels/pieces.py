"""Cutting a pass over a model's memory into pieces: at its blocks, and at edges such as where a layer begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Spans = Sequence[tuple[int, int]]


def cut(size: int, block: int, edges: Iterable[int]) -> Array:
    """(start, stop) of each piece, in order."""
    stops = np.union1d(np.array((size, *edges), np.int64), np.arange(0, size, block))
    return np.stack([stops[:-1], stops[1:]], axis=1)


def count(spans: Spans, block: int, edges: Iterable[int]) -> int:
    """How many pieces lie in these spans, where it is cut at their ends too. A plan needs the number alone, and of a
    model that fits no machine, whose pieces would not either: so none is made."""
    between = sorted({edge for edge in (*edges, *chain.from_iterable(spans)) if edge % block})

    def before(end: int) -> int:
        return -(-end // block) + bisect_left(between, end)

    return sum(before(stop) - before(start) for start, stop in spans)


def inside(pieces: Array, spans: Spans) -> Array:
    """Which pieces lie in one of these spans: where as many have begun as have ended, none is open."""
    edges = np.array(sorted(chain.from_iterable(spans)), np.int64)
    found: Array = np.searchsorted(edges, pieces[:, 0], side="right") % 2 == 1
    return found
