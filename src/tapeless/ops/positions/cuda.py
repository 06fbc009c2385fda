"""Positions on the GPU. A place of the table sums its own gradient over the batch, sequence after sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers, put, width
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, table, add=NONE) -> list[Native]:
    batch, time, channels = y.shape
    options = {"ADD": "y" in add, "WIDTH": width(channels)}
    return [launch(_forward, batch * time, y, y.stride(0), y.stride(1), table, time, channels, **options)]


def backward(dtable, dy, add=NONE) -> list[Native]:
    batch, time, channels = dy.shape
    adds = "dtable" in add
    arguments = (dtable, dy, dy.stride(0), dy.stride(1), batch, time, channels)
    places = time if adds else len(dtable)  # those beyond the sequence are 0
    return [launch(_backward, places, *arguments, ADD=adds, WIDTH=width(channels))]


@triton.jit
def _forward(Y, batch_stride, time_stride, TABLE, T, C, ADD: tl.constexpr, WIDTH: tl.constexpr):
    b, t = tl.program_id(0).to(tl.int64) // T, tl.program_id(0) % T
    c = tl.arange(0, WIDTH)
    put(Y + b * batch_stride + t * time_stride + c, numbers(TABLE + t * C + c, c < C), c < C, ADD)  # (1)


@triton.jit
def _backward(DTABLE, DY, batch_stride, time_stride, B, T, C, ADD: tl.constexpr, WIDTH: tl.constexpr):
    t = tl.program_id(0)
    c = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for b in range(B):
        at = tl.cast(b, tl.int64) * batch_stride + t * time_stride + c
        total += numbers(DY + at, c < tl.where(t < T, C, 0))
    put(DTABLE + t * C + c, total, c < C, ADD)  # (2)
