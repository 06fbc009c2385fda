"""Clip on the GPU: two numbers, where the device can read them."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch
from tapeless.kernels.native import Native


def forward(scale, finite, loss, norm, limit, largest) -> list[Native]:
    return [launch(_clip, 1, scale, finite, loss, norm, limit, largest, num_warps=1)]


@triton.jit
def _clip(SCALE, FINITE, LOSS, NORM, LIMIT, LARGEST):
    loss, norm, limit = tl.load(LOSS), tl.load(NORM), tl.load(LIMIT)
    scale = tl.where(norm > limit, limit / norm, 1.0)
    tl.store(SCALE, scale)  # (1)
    small = tl.where(norm * scale < tl.load(LARGEST), 1, 0)
    tl.store(FINITE, tl.where(loss - loss == 0, small, 0))  # (2): ∞ − ∞ is NaN
