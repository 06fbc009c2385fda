"""Dropout on the GPU: Triton has Philox, and a program draws four words of each of its counters."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import along, numbers
from tapeless.kernels.native import Native
from tapeless.ops.dropout.reference import threshold


def forward(y, x, seed, draws, rate, site) -> list[Native]:
    return along(_dropout, y, x, SEED=seed, DRAWS=draws, threshold=threshold(rate), scale=1 / (1 - rate), site=site)


def backward(dx, dy, seed, draws, rate, site) -> list[Native]:
    return forward(dx, dy, seed, draws, rate, site)


@triton.jit
def _dropout(Y, X, N, SEED, DRAWS, threshold, scale, site, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    counter = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    draws, nothing = tl.load(DRAWS), counter * 0
    low, high = nothing + (draws & 0xFFFFFFFF).to(tl.uint32), nothing + (draws >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(tl.load(SEED), counter, (nothing + site).to(tl.uint32), low, high)
    words = tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK)  # a, b, c, d of the first counter, of the second …
    factor = tl.where(words.to(tl.int64) >= threshold, scale, 0.0)
    tl.store(Y + at, numbers(X + at, at < N) * factor, mask=at < N)
