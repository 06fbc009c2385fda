"""Squared error on the CPU."""

from __future__ import annotations

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, plus
from tapeless.kernels.native import Native


def forward(loss, x, table, targets, count, scratch) -> list[Native]:
    return [SQUARED_ERROR.bind(x.size, loss, None, *scratch, x, table, targets, count)]


def backward(loss, dx, x, table, targets, count, scratch) -> list[Native]:
    return [SQUARED_ERROR.bind(x.size, loss, dx, *scratch, x, table, targets, count)]


def squared_error(loss, dx, row_loss, x, table, targets, count):
    """The loss and, where there is room for it, the gradient."""
    rows, width = x.shape
    share = float32(2.0 / (count[0] * width))
    for r in prange(rows):
        row_loss[r] = 0.0
        if targets[r] >= 0:
            row, aim = x[r], table[targets[r]]
            total = 0.0  # in float64: the mean of squares may fit where their sum does not
            for c in range(width):
                total = plus(total, float64(row[c] - aim[c]) * float64(row[c] - aim[c]))
            row_loss[r] = total
            if dx is not None:
                out = dx[r]
                for c in range(width):
                    out[c] = share * (row[c] - aim[c])
        elif dx is not None:
            dx[r, :] = float32(0)
    total = 0.0
    for r in range(rows):
        total += row_loss[r]
    loss[0] = float32(total / (count[0] * width))


SQUARED_ERROR = Kernel(squared_error)
