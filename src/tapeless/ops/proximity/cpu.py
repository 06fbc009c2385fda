"""Proximity on the CPU: the products, then one pass that puts the squares in."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, gemm, plus
from tapeless.kernels.native import Native


def forward(y, x, weight, scratch) -> list[Native]:
    return [
        gemm(y, x, weight, transpose_b=True, scratch=scratch[1:], upcast=True),
        PROXIMITY.bind(y.size, y, x, weight, scratch[0]),
    ]


def backward(dx, dweight, dy, x, weight, scratch=()) -> list[Native]:
    return [
        gemm(dx, dy, weight, scratch=scratch, upcast=True),
        PULL_BACK.bind(dx.size, dx, dy, x),
        gemm(dweight, dy, x, transpose_a=True, scratch=scratch),
        PULL_BACK.bind(dweight.size, dweight, dy.T, weight),
    ]


def proximity(y, x, weight, squares):
    """y holds x @ weightᵀ; makes it 2y − ‖x‖² − ‖weight‖²."""
    for v in range(weight.shape[0]):
        row, total = weight[v], float32(0)
        for c in range(row.size):
            total = plus(total, row[c] * row[c])
        squares[v] = total
    for r in prange(y.shape[0]):
        row, out, total = x[r], y[r], float32(0)
        for c in range(row.size):
            total = plus(total, row[c] * row[c])
        for v in range(out.size):
            out[v] = float32(2) * out[v] - total - squares[v]


def pull_back(out, dy, rows):
    """out holds the product; makes it 2 · (out − rows · Σ dy)."""
    for r in prange(out.shape[0]):
        total, slopes = float32(0), dy[r]
        for v in range(slopes.size):
            total = plus(total, slopes[v])
        for c in range(out.shape[1]):
            out[r, c] = float32(2) * (out[r, c] - rows[r, c] * total)


PROXIMITY, PULL_BACK = Kernel(proximity), Kernel(pull_back)
