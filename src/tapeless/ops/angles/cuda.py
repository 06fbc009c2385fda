"""Angles on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, width
from tapeless.kernels.native import Native


def forward(cos, sin, places, rates) -> list[Native]:
    pairs = len(rates)
    return [launch(_forward, places.numel(), cos, sin, places, rates, pairs, WIDTH=width(pairs), num_warps=1)]


@triton.jit
def _forward(COS, SIN, PLACES, RATES, A, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    a = tl.arange(0, WIDTH)
    angle = tl.load(PLACES + row).to(tl.float64) * tl.load(RATES + a, mask=a < A, other=0.0)
    tl.store(COS + row * A + a, tl.cos(angle).to(tl.float32), mask=a < A)  # (1)
    tl.store(SIN + row * A + a, tl.sin(angle).to(tl.float32), mask=a < A)
