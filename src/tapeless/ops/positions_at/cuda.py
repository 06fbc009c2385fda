"""Positions from a place on, on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers, put, width
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, table, position, add=NONE) -> list[Native]:
    batch, time, channels = y.shape
    options = {"ADD": "y" in add, "WIDTH": width(channels)}
    return [launch(_forward, batch * time, y, y.stride(0), y.stride(1), table, position, time, channels, **options)]


@triton.jit
def _forward(Y, batch_stride, time_stride, TABLE, POSITION, T, C, ADD: tl.constexpr, WIDTH: tl.constexpr):
    b, t = tl.program_id(0).to(tl.int64) // T, tl.program_id(0) % T
    c = tl.arange(0, WIDTH)
    place = numbers(TABLE + (tl.load(POSITION) + t) * C + c, c < C)
    put(Y + b * batch_stride + t * time_stride + c, place, c < C, ADD)  # (1)
