"""Residual on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import along, numbers
from tapeless.kernels.native import Native


def forward(y, x, branch) -> list[Native]:
    return along(_forward, y, x, branch)


@triton.jit
def _forward(Y, X, BRANCH, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, numbers(X + at, at < N) + numbers(BRANCH + at, at < N), mask=at < N)
