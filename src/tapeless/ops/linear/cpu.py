"""Linear on the CPU: the products are the BLAS's, which adds where the call adds (beta = 1)."""

from __future__ import annotations

from numba import float32, prange

from tapeless.backends.blas import Run, bound_gemm
from tapeless.backends.compile import Kernel
from tapeless.backends.vector import inlined
from tapeless.ops.contract import NONE

COLUMNS = 64  # summed by one thread


def forward(y, x, weight, bias) -> list[Run]:
    runs: list[Run] = [bound_gemm(y, x, weight)]
    if bias is not None:
        runs.append(BIAS_ADD.bind(y.size, y, bias))
    return runs


def backward(dx, dweight, dbias, dy, x, weight, add=NONE) -> list[Run]:
    runs: list[Run] = []
    if dbias is not None:  # first, while nothing has pushed dy out of the cache
        runs.append(COLUMN_SUMS.bind(dy.size, dbias, dy, "dbias" in add))
    runs.append(bound_gemm(dweight, x, dy, transpose_a=True, beta=float("dweight" in add)))
    if dx is not None:
        runs.append(bound_gemm(dx, dy, weight, transpose_b=True, beta=float("dx" in add)))
    return runs


def bias_add(y, bias):
    for r in prange(y.shape[0]):
        row = y[r]
        for c in range(row.size):
            row[c] += bias[c]


def column_sums(total, y, add):
    """total[c] (+)= Σ_r y[r, c]: each block of columns is summed by one thread, top to bottom."""
    for block in prange((y.shape[1] + COLUMNS - 1) // COLUMNS):
        at = block * COLUMNS
        out = total[at : at + COLUMNS]
        if not add:
            out[:] = float32(0)
        _add_rows(out, y, at)


@inlined
def _add_rows(out, y, at):
    """Four rows at a time, so that a running sum is loaded and stored once for four."""
    rows, stop = y.shape[0], at + out.size
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        a, b, c, d = y[r, at:stop], y[r + 1, at:stop], y[r + 2, at:stop], y[r + 3, at:stop]
        for i in range(out.size):
            out[i] += (a[i] + b[i]) + (c[i] + d[i])
    for r in range(whole, rows):
        a = y[r, at:stop]
        for i in range(out.size):
            out[i] += a[i]


BIAS_ADD, COLUMN_SUMS = Kernel(bias_add), Kernel(column_sums)
