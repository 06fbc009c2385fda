"""The memory that an adapter on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import gemm_scratch
from tapeless.kernels.native import Scratch


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    rows, rank, width = (call.dims[letter] for letter in "RMF")
    return [Scratch((rows, rank)), *gemm_scratch(call, precision, (rows, width, rank))]


def backward_scratch(call: Any, precision: Any) -> list[Scratch]:
    rows, rank, width = (call.dims[letter] for letter in "RMF")
    return [Scratch((rows, rank)), *gemm_scratch(call, precision, (rank, width, rows), (rows, rank, width))]
