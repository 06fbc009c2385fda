"""Linear on the CPU: products, which add where the call adds (beta = 1)."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, block_count, gemm, gemm_library, inlined, is_bfloat16
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

COLUMNS = 64  # summed by one thread


def forward(y, x, weight, bias, scratch=(), relu=False) -> list[Native]:
    """`relu`: of what ReLU leaves of x, by our own products and for several rows."""
    if scratch and scratch[0].ndim == 2:
        if relu:
            raise ValueError("one row is multiplied as it is: fold no ReLU into it")
        return [ONE_ROW.bind(weight.size, y[0], x[0], weight, bias, *scratch)]
    if bias is None or is_bfloat16(weight) or gemm_library() == "own":
        return [gemm(y, x, weight, scratch=scratch, bias=bias, upcast=True, relu=relu)]
    return [gemm(y, x, weight, scratch=scratch, relu=relu), BIAS_ADD.bind(y.size, y, bias)]


def backward(dx, dweight, dbias, dy, x, weight, add=NONE, scratch=(), relu=False, mask=None) -> list[Native]:
    """`relu` as in the forward; dx is 0 where the `mask` is ≤ 0."""
    natives: list[Native] = []
    if dbias is not None:  # first, while nothing has pushed dy out of the cache
        natives.append(COLUMN_SUMS.bind(dy.size, dbias, dy, "dbias" in add))
    if dweight is not None:
        natives.append(gemm(dweight, x, dy, transpose_a=True, beta=float("dweight" in add), scratch=scratch, relu=relu))
    if dx is not None:
        adds = float("dx" in add)
        natives.append(gemm(dx, dy, weight, transpose_b=True, beta=adds, scratch=scratch, upcast=True, mask=mask))
    return natives


def one_row(y, x, weight, bias, partial):
    """y = x @ weight + bias for one x. A thread reads whole rows of the matrix, one after the other, because memory
    is fastest that way; MKL gets half of its speed here."""
    rows, blocks = weight.shape[0], partial.shape[0]
    for block in prange(blocks):
        out = partial[block]
        out[:] = float32(0)
        _add_scaled_rows(out, x, weight, rows * block // blocks, rows * (block + 1) // blocks)
    total = partial[0]
    for f in range(y.size):
        total[f] += float32(0) if bias is None else bias[f]
    for block in range(1, blocks):
        part = partial[block]
        for f in range(y.size):
            total[f] += part[f]
    y[:] = total


@inlined
def _add_scaled_rows(out, x, weight, start, stop):
    """Eight rows at a time, so that a running sum is loaded and stored once for eight."""
    whole = start + (stop - start) // 8 * 8
    for c in range(start, whole, 8):
        a, b, d, e = weight[c], weight[c + 1], weight[c + 2], weight[c + 3]
        f, g, h, k = weight[c + 4], weight[c + 5], weight[c + 6], weight[c + 7]
        xa, xb, xd, xe = x[c], x[c + 1], x[c + 2], x[c + 3]
        xf, xg, xh, xk = x[c + 4], x[c + 5], x[c + 6], x[c + 7]
        for i in range(out.size):
            first = (a[i] * xa + b[i] * xb) + (d[i] * xd + e[i] * xe)
            out[i] += first + ((f[i] * xf + g[i] * xg) + (h[i] * xh + k[i] * xk))
    for c in range(whole, stop):
        row, factor = weight[c], x[c]
        for i in range(out.size):
            out[i] += row[i] * factor


def bias_add(y, bias):
    for r in prange(y.shape[0]):
        row = y[r]
        for c in range(row.size):
            row[c] += bias[c]


def column_sums(total, y, add):
    """total[c] (+)= Σ_r y[r, c]: each block of columns is summed by one thread, top to bottom."""
    for block in prange(block_count(y.shape[1], COLUMNS)):
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


ONE_ROW, BIAS_ADD, COLUMN_SUMS = Kernel(one_row), Kernel(bias_add), Kernel(column_sums)
