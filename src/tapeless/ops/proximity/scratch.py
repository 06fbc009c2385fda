"""The memory that proximity on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import gemm_scratch
from tapeless.kernels.native import Scratch


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    """The square of every weight."""
    rows, channels, words = (call.dims[letter] for letter in "RCV")
    return [Scratch((words,)), *gemm_scratch(call, precision, (rows, words, channels))]


def backward_scratch(call: Any, precision: Any) -> list[Scratch]:
    rows, channels, words = (call.dims[letter] for letter in "RCV")
    return gemm_scratch(call, precision, (rows, channels, words), (words, channels, rows))
