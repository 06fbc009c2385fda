"""Residual on the CPU."""

from __future__ import annotations

from numba import prange

from tapeless.kernels.cpu.compile import Kernel, flat
from tapeless.kernels.cpu.division import blocks
from tapeless.kernels.cpu.vector import inlined
from tapeless.kernels.native import Native

BLOCK = 16384


def forward(y, x, branch) -> list[Native]:
    return [RESIDUAL.bind(x.size, *flat(y, x, branch))]


def residual(y, x, branch):
    for block in prange(blocks(x.size, BLOCK)):
        at = block * BLOCK
        _sum(y[at : at + BLOCK], x[at : at + BLOCK], branch[at : at + BLOCK])


@inlined
def _sum(y, x, branch):
    for i in range(x.size):
        y[i] = x[i] + branch[i]


RESIDUAL = Kernel(residual)
