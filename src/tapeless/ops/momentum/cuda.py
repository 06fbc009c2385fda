"""Momentum on the GPU: one pass over the arena."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, along, numbers


def forward(weights, m, gradients, scale, lr, momentum) -> list[Run]:
    return along(_momentum, weights, m, gradients, SCALE=scale, LR=lr, momentum=momentum)


@triton.jit
def _momentum(WEIGHTS, M, GRADIENTS, N, SCALE, LR, momentum, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rate, scale = tl.load(LR).to(tl.float32), tl.load(SCALE).to(tl.float32)
    m = momentum * numbers(M + at, at < N) + scale * numbers(GRADIENTS + at, at < N)  # (1)
    tl.store(M + at, m, mask=at < N)
    tl.store(WEIGHTS + at, numbers(WEIGHTS + at, at < N) - rate * m, mask=at < N)  # (2)
