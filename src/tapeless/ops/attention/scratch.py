"""The memory that attention on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import worker_count
from tapeless.kernels.native import Scratch

STRIP = 96  # queries: whole tiles of a product
THREADED_WORK = 10_000  # multiplications, below which one thread does it all


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    """A strip of scores for every thread."""
    batch, heads, queries, keys = (call.dims[letter] for letter in "BHTS")
    most = batch * heads * -(-queries // STRIP)
    workers = worker_count(call["q"].elements * keys, THREADED_WORK, most)
    strips = Scratch((workers, min(STRIP, queries), row_length(keys)))
    return [strips, *_sums(call, precision, workers)]


def backward_scratch(call: Any, precision: Any) -> list[Scratch]:
    """A strip of weights and one of slopes for every thread; where heads are shared, or what is written is rounded, dk
    and dv of each that shares."""
    batch, heads, queries, keys = (call.dims[letter] for letter in "BHTS")
    workers = worker_count(2 * call["q"].elements * keys, THREADED_WORK, batch * heads)
    sums = _sums(call, precision, workers)
    parts = [Scratch((batch, keys, call.dims["C"]))] * 2 if sums or call.dims["E"] < call.dims["C"] else []
    return [Scratch((workers, 2, min(STRIP, queries), row_length(keys))), *parts, *sums]


def _sums(call: Any, precision: Any, workers: int) -> list[Scratch]:
    """The rows of a strip before they are rounded, where they are."""
    rows, width = min(STRIP, call.dims["T"]), call.dims["C"] // call.dims["H"]
    return [] if precision.activation == "float32" else [Scratch((workers, rows, width))]


def row_length(keys: int) -> int:
    """Not a power of two: the rows of a strip must not fall onto the same sets of the cache. And whole vectors, which
    the least product writes."""
    return -(-keys // 16) * 16 + 16
