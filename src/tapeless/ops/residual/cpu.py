"""Residual on the CPU."""

from __future__ import annotations

from numba import prange

from tapeless.kernels.cpu import Kernel, block_count, flat, inlined
from tapeless.kernels.native import Native

BLOCK = 16384


def forward(y, x, branch) -> list[Native]:
    return [RESIDUAL.bind(x.size, *flat(y, x, branch))]


def residual(y, x, branch):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _sum(y[at : at + BLOCK], x[at : at + BLOCK], branch[at : at + BLOCK])


@inlined
def _sum(y, x, branch):
    for i in range(x.size):
        y[i] = x[i] + branch[i]


RESIDUAL = Kernel(residual)
