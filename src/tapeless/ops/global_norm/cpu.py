"""Global norm on the CPU: one pass, in float64, in pieces whose sums are added in order."""

from __future__ import annotations

from math import sqrt

from numba import prange

from tapeless.kernels.cpu import Kernel
from tapeless.kernels.native import Native
from tapeless.ops.update_cpu import cut, roots, square_sum


def forward(norm, norms, gradients, sections, scratch) -> list[Native]:
    pieces, firsts = cut(gradients.size, sections)
    return [GLOBAL_NORM.bind(gradients.size, norm, norms, gradients, pieces, firsts, *scratch)]


def global_norm(norm, norms, gradients, pieces, firsts, squares):
    for piece in prange(squares.size):
        squares[piece] = square_sum(gradients[pieces[piece, 0] : pieces[piece, 1]])
    roots(norms, squares, firsts)
    total = 0.0
    for piece in range(squares.size):
        total += squares[piece]
    norm[0] = sqrt(total)


GLOBAL_NORM = Kernel(global_norm)
