"""The memory that a linear on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import gemm_scratch, part_count
from tapeless.kernels.native import Scratch

BLOCKS = 16  # of a matrix's rows, when there is one row to multiply: a fixed number, whatever the threads


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    """For one row, all the time goes into reading the weights: y once for every block of them."""
    rows, width, count = call.dims["C"], call.dims["F"], call.dims["R"]
    if count == 1 and call["weight"].whole:
        return [Scratch((part_count(rows, 32, BLOCKS), width))]
    return gemm_scratch(call, precision, (count, width, rows))


def backward_scratch(call: Any, precision: Any) -> list[Scratch]:
    rows, channels, width = (call.dims[letter] for letter in "RCF")
    sizes = {"dx": (rows, channels, width), "dweight": (channels, width, rows)}
    return gemm_scratch(call, precision, *(sizes[each.name] for each in call.writes if each.name in sizes))
