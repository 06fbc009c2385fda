"""ReLU on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import along
from tapeless.kernels.native import Native


def forward(y, x) -> list[Native]:
    return along(_forward, y, x)


def backward(dx, dy, x) -> list[Native]:
    return along(_backward, dx, dy, x)


@triton.jit
def _forward(Y, X, N, BLOCK: tl.constexpr):
    """NaN is not ≤ 0 and passes, so that it is noticed."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < N)
    tl.store(Y + at, tl.where(x <= 0, 0.0, x), mask=at < N)


@triton.jit
def _backward(DX, DY, X, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, dy = tl.load(X + at, mask=at < N), tl.load(DY + at, mask=at < N)
    tl.store(DX + at, tl.where(x <= 0, 0.0, dy), mask=at < N)
