"""Adapt on the GPU: the products are cuBLAS's, which scales them, and adds where the call adds."""

from __future__ import annotations

from tapeless.kernels.cuda.products import factor, product
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, low, weight, scale, add=NONE) -> list[Native]:
    return product(y, low, weight, "y" in add, scale)


def backward(dlow, dweight, dy, low, weight, scale, add=NONE) -> list[Native]:
    runs: list[Native] = []
    dy = factor(dy, weight.dtype, runs)  # once for both
    if dweight is not None:
        runs += product(dweight, low.T, dy, "dweight" in add, scale)
    if dlow is not None:
        runs += product(dlow, dy, weight.T, "dlow" in add, scale)
    return runs
