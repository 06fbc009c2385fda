"""RMSNorm on the CPU: one stretch at a time, which stays in the cache for its two passes."""

from __future__ import annotations

from math import sqrt

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, block_count, inlined, plus, rounded_product, strided, upcast
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, rstd, x, weight, eps) -> list[Native]:
    return [RMSNORM.bind(x.size, *strided(y, x), rstd, weight, eps)]


def backward(dx, dweight, dy, x, weight, rstd, scratch, add=NONE) -> list[Native]:
    arguments = (*strided(dx, dy, x), dweight, weight, rstd, *scratch, "dx" in add, "dweight" in add)
    return [RMSNORM_BACKWARD.bind(x.size, *arguments)]


def rmsnorm(y, y_step, x, x_step, rstd, weight, eps):
    (rows, heads), width = rstd.shape, weight.size
    for r in prange(rows):
        for h in range(heads):
            to, at = r * y_step + h * width, r * x_step + h * width
            rstd[r, h] = _stretch(y[to : to + width], x[at : at + width], weight, eps)


@inlined
def _stretch(y, x, weight, eps):
    """The sum is in float64: what it loses stretches all of it, and squares of float32 may not fit one."""
    total = float64(0)
    for d in range(x.size):
        total = plus(total, float64(upcast(x[d])) * float64(upcast(x[d])))
    rstd = float32(1 / sqrt(total / x.size + eps))
    for d in range(x.size):
        y[d] = x[d] * rstd * weight[d]
    return rstd


def rmsnorm_backward(dx, dx_step, dy, dy_step, x, x_step, dweight, weight, rstd, partial, add_dx, add_dweight):
    (rows, heads), width, blocks = rstd.shape, weight.size, partial.shape[0]
    height = block_count(rows, blocks)
    for block in prange(blocks):
        mine = partial[block]
        mine[:] = float32(0)
        for r in range(block * height, min(rows, block * height + height)):
            for h in range(heads):
                from_dy, from_x = r * dy_step + h * width, r * x_step + h * width
                dys, xs = dy[from_dy : from_dy + width], x[from_x : from_x + width]
                _weights(mine, dys, xs, rstd[r, h])
                if dx is not None:
                    to = r * dx_step + h * width
                    _stretch_backward(dx[to : to + width], dys, xs, weight, rstd[r, h], add_dx)
    if dweight is not None:
        if not add_dweight:
            dweight[:] = float32(0)
        for block in range(blocks):
            part = partial[block]
            for d in range(width):
                dweight[d] += part[d]


@inlined
def _weights(dweight, dy, x, rstd):
    for d in range(x.size):
        dweight[d] += dy[d] * (x[d] * rstd)


@inlined
def _stretch_backward(dx, dy, x, weight, rstd, add):
    total = float32(0)
    for d in range(x.size):
        total = plus(total, rounded_product(dy[d], weight[d]) * (x[d] * rstd))
    mean = total / float32(x.size)
    if add:
        for d in range(x.size):
            dx[d] += rstd * (rounded_product(dy[d], weight[d]) - (x[d] * rstd) * mean)
    else:
        for d in range(x.size):
            dx[d] = rstd * (rounded_product(dy[d], weight[d]) - (x[d] * rstd) * mean)


RMSNORM, RMSNORM_BACKWARD = Kernel(rmsnorm), Kernel(rmsnorm_backward)
