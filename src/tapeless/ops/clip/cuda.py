"""Clip on the GPU: one number, where the device can read it."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, launch


def forward(scale, norm, limit) -> list[Run]:
    return [launch(_clip, 1, scale, norm, limit, num_warps=1)]


@triton.jit
def _clip(SCALE, NORM, LIMIT):
    norm, limit = tl.load(NORM), tl.load(LIMIT)
    tl.store(SCALE, tl.where(norm > limit, limit / norm, 1.0))  # (1)
