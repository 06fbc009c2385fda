"""LayerNorm on the CPU: one row at a time, which stays in the cache for its three passes."""

from __future__ import annotations

from math import sqrt

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, block_count, inlined, plus, rounded_product, upcast
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, mean, rstd, x, weight, bias, eps) -> list[Native]:
    return [LAYERNORM.bind(x.size, y, mean, rstd, x, weight, bias, eps)]


def backward(dx, dweight, dbias, dy, x, weight, mean, rstd, scratch, add=NONE) -> list[Native]:
    adds = ("dx" in add, "dweight" in add, "dbias" in add)
    return [LAYERNORM_BACKWARD.bind(x.size, dx, dweight, dbias, dy, x, weight, mean, rstd, *scratch, *adds)]


def layernorm(y, mean, rstd, x, weight, bias, eps):
    share = 1.0 / x.shape[1]
    for r in prange(x.shape[0]):
        mean[r], rstd[r] = _row(y[r], x[r], weight, bias, eps, share)


@inlined
def _row(y, x, weight, bias, eps, share):
    """The two sums are in float64: what they lose shifts or stretches a whole row, and every gradient below it. So does
    what the mean loses when it becomes a float32, where the row's values are near each other: it is taken off too."""
    total = float64(0)
    for c in range(x.size):
        total = plus(total, float64(upcast(x[c])))
    mean = float32(total / x.size)
    rest = float32(total / x.size - float64(mean))
    spread = float64(0)
    for c in range(x.size):
        spread = plus(spread, float64(x[c] - mean) * float64(x[c] - mean))
    variance = spread * share - float64(rest) * float64(rest)
    rstd = float32(1 / sqrt((0.0 if variance < 0.0 else variance) + eps))  # not max, which would swallow a NaN
    for c in range(x.size):
        y[c] = ((x[c] - mean) - rest) * rstd * weight[c] + bias[c]
    return mean, rstd


def layernorm_backward(dx, dweight, dbias, dy, x, weight, mean, rstd, partial, add_dx, add_dweight, add_dbias):
    rows, blocks = x.shape[0], partial.shape[0]
    height = block_count(rows, blocks)
    for block in prange(blocks):
        mine = partial[block]
        mine[:, :] = float32(0)
        for r in range(block * height, min(rows, block * height + height)):
            if dx is None:
                _row_weights(mine[0], mine[1], dy[r], x[r], mean[r], rstd[r])
            else:
                _row_backward(dx[r], mine[0], mine[1], dy[r], x[r], weight, mean[r], rstd[r], add_dx)
    if dweight is not None:
        _add_up(dweight, partial[:, 0], add_dweight)
    if dbias is not None:
        _add_up(dbias, partial[:, 1], add_dbias)


@inlined
def _add_up(total, parts, add):
    if not add:
        total[:] = float32(0)
    for block in range(parts.shape[0]):
        part = parts[block]
        for c in range(total.size):
            total[c] += part[c]


@inlined
def _row_weights(dweight, dbias, dy, x, mean, rstd):
    """What is left of a row's backward where nothing below is trained."""
    rest = float32(0)
    for c in range(x.size):
        rest = plus(rest, x[c] - mean)
    rest /= float32(x.size)
    for c in range(x.size):
        dweight[c] += dy[c] * (((x[c] - mean) - rest) * rstd)
        dbias[c] += dy[c]


@inlined
def _row_backward(dx, dweight, dbias, dy, x, weight, mean, rstd, add):
    """`rest` is what the saved mean has lost to rounding: the mean of what is left."""
    g_sum, gx_sum, rest = float32(0), float32(0), float32(0)
    for c in range(x.size):
        g, centred = rounded_product(dy[c], weight[c]), x[c] - mean
        g_sum = plus(g_sum, g)
        gx_sum = plus(gx_sum, g * (centred * rstd))
        rest = plus(rest, centred)
    width = float32(x.size)
    rest /= width
    g_mean, gx_mean = g_sum / width, (gx_sum - rest * rstd * g_sum) / width
    if add:
        for c in range(x.size):
            xhat = ((x[c] - mean) - rest) * rstd
            dx[c] += rstd * (rounded_product(dy[c], weight[c]) - g_mean - xhat * gx_mean)
            dweight[c] += dy[c] * xhat
            dbias[c] += dy[c]
    else:
        for c in range(x.size):
            xhat = ((x[c] - mean) - rest) * rstd
            dx[c] = rstd * (rounded_product(dy[c], weight[c]) - g_mean - xhat * gx_mean)
            dweight[c] += dy[c] * xhat
            dbias[c] += dy[c]


LAYERNORM, LAYERNORM_BACKWARD = Kernel(layernorm), Kernel(layernorm_backward)
