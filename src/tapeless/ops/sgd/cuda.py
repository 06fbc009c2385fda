"""SGD on the GPU: one pass over the arena."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, along, numbers


def forward(weights, gradients, scale, lr) -> list[Run]:
    return along(_sgd, weights, gradients, SCALE=scale, LR=lr)


@triton.jit
def _sgd(WEIGHTS, GRADIENTS, N, SCALE, LR, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rate, scale = tl.load(LR).to(tl.float32), tl.load(SCALE).to(tl.float32)
    w = numbers(WEIGHTS + at, at < N) - rate * (scale * numbers(GRADIENTS + at, at < N))  # (1)
    tl.store(WEIGHTS + at, w, mask=at < N)
