"""Global norm on the CPU: one pass, in float64, in blocks whose sums are added in order."""

from __future__ import annotations

from math import sqrt

from numba import float64, prange

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.division import blocks
from tapeless.kernels.cpu.vector import inlined, plus
from tapeless.kernels.native import Native, Scratch

BLOCK = 65536


def forward_scratch(call) -> list[Scratch]:
    """The sum of every block."""
    return [Scratch((blocks(call.dims["N"], BLOCK),), "float64")]


def forward(norm, gradients, scratch) -> list[Native]:
    return [GLOBAL_NORM.bind(gradients.size, norm, gradients, *scratch)]


def global_norm(norm, gradients, partial):
    for block in prange(partial.size):
        partial[block] = _square_sum(gradients[block * BLOCK : block * BLOCK + BLOCK])
    total = 0.0
    for block in range(partial.size):
        total += partial[block]
    norm[0] = sqrt(total)


@inlined
def _square_sum(x):
    total = 0.0
    for i in range(x.size):
        total = plus(total, float64(x[i]) * float64(x[i]))
    return total


GLOBAL_NORM = Kernel(global_norm)
