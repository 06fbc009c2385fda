"""Unembed on the CPU: products, but for one row, where MKL reads the vocabulary at half the memory's speed."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, gemm, gemm_scratch, plus
from tapeless.kernels.native import Native, Scratch


def forward_scratch(call, precision) -> list[Scratch]:
    rows, channels, words = (call.dims[letter] for letter in "RCV")
    return gemm_scratch(call, precision, (rows, words, channels)) if rows > 1 else []


def forward(y, x, weight, scratch=()) -> list[Native]:
    if len(x) == 1:
        return [ONE_ROW.bind(weight.size, y[0], x[0], weight)]
    return [gemm(y, x, weight, transpose_b=True, scratch=scratch, upcast=True)]


def backward_scratch(call, precision) -> list[Scratch]:
    rows, channels, words = (call.dims[letter] for letter in "RCV")
    return gemm_scratch(call, precision, (rows, channels, words), (words, channels, rows))


def backward(dx, dweight, dy, x, weight, scratch=()) -> list[Native]:
    return [
        gemm(dx, dy, weight, scratch=scratch, upcast=True),
        gemm(dweight, dy, x, transpose_a=True, scratch=scratch),
    ]


def one_row(y, x, weight):
    for v in prange(y.size):
        word, total = weight[v], float32(0)
        for c in range(x.size):
            total = plus(total, word[c] * x[c])
        y[v] = total


ONE_ROW = Kernel(one_row)
