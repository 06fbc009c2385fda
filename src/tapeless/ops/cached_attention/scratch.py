"""The memory that attention over the cache on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import worker_count
from tapeless.kernels.native import Scratch
from tapeless.ops.attention.scratch import THREADED_WORK, row_length


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    """The scores of all queries of a head, for every thread."""
    batch, queries, held, channels = (call.dims[letter] for letter in "BTPC")
    workers = worker_count(call["q"].elements * held, THREADED_WORK, batch * (channels // call.dims["D"]))
    sums = [] if precision.activation == "float32" else [Scratch((workers, queries, call.dims["D"]))]
    return [Scratch((workers, queries, row_length(held))), *sums]
