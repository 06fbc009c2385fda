"""Squared error on the GPU: a program has a row."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.classifier.cuda import LOSSES, _total


def forward(loss, x, table, targets, count) -> list[Native]:
    return backward(loss, None, x, table, targets, count)


def backward(loss, dx, x, table, targets, count) -> list[Native]:
    rows, channels = x.shape
    losses = scratch(x, rows)
    return [
        launch(_rows, rows, losses, dx, x, table, targets, count, channels, WIDTH=width(channels)),
        launch(_total, 1, loss, losses, count, rows, float(channels), BLOCK=LOSSES, num_warps=8),
    ]


@triton.jit
def _rows(LOSSES, DX, X, TABLE, TARGETS, COUNT, C, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH)
    target = tl.load(TARGETS + row)
    counts = c < tl.where(target >= 0, C, 0)
    difference = numbers(X + row * C + c, counts) - numbers(TABLE + target * C + c, counts)
    tl.store(LOSSES + row, tl.sum(difference * difference, 0))  # (1)
    if DX is not None:
        tl.store(DX + row * C + c, difference * (2.0 / (tl.load(COUNT) * C)).to(tl.float32), mask=c < C)  # (2)
