"""AdamW on the GPU: one pass over the arena."""

from __future__ import annotations

from functools import partial
from math import log

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers
from tapeless.kernels.cuda.sections import cut, full_and_rounded, piece, step_to, sum_of_squares
from tapeless.kernels.native import Native


def forward(
    weights, m, v, master, step, moved, norms, gradients, scale, finite, lr, beta1, beta2, eps, decay, decayed, sections
) -> list[Native]:
    pieces = cut(weights, sections, decayed)
    squares = pieces.squares(moved, norms)
    tensors = (*full_and_rounded(weights, master), m, v, *squares, gradients, scale, finite, lr, step, pieces.pieces)
    betas = (log(beta1), log(beta2), 1 - beta1, beta2, 1 - beta2, eps, decay)
    return [
        partial(step.add_, finite),
        launch(_adamw, len(pieces), *tensors, *betas, **pieces.options),
        pieces.roots(moved, squares[0]),  # (4)
        pieces.roots(norms, squares[1]),
    ]


@triton.jit
def _adamw(
    WEIGHTS,
    ROUNDED,
    M,
    V,
    MOVED,
    NORMS,
    GRADIENTS,
    SCALE,
    FINITE,
    LR,
    STEP,
    PIECES,
    log_beta1,
    log_beta2,
    new1,
    keep2,
    new2,
    eps,
    decay,
    GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start, stop = piece(PIECES, GRAIN)
    at = start + tl.arange(0, BLOCK)
    changes = at < tl.where(tl.load(FINITE) != 0, stop, start)
    shrink = (tl.load(LR) * decay).to(tl.float32) * tl.load(PIECES + 3 * tl.program_id(0) + 2)
    g = tl.load(SCALE).to(tl.float32) * numbers(GRADIENTS + at, changes)
    m, v, w = numbers(M + at, changes), numbers(V + at, changes), numbers(WEIGHTS + at, at < stop)
    betas = (log_beta1, log_beta2, new1, keep2, new2, eps)
    m, v, change = adam(m, v, g, tl.load(STEP), tl.load(LR), betas)
    tl.store(M + at, m, mask=changes)
    tl.store(V + at, v, mask=changes)
    change = tl.where(changes, shrink * w + change, 0.0)  # (3)
    step_to(WEIGHTS, ROUNDED, at, w - change, changes)
    sum_of_squares(MOVED, change, tl.program_id(0))
    sum_of_squares(NORMS, w, tl.program_id(0))


@triton.jit
def adam(m, v, g, step, lr, betas):
    """Both means, a gradient further, and how far they say to go."""
    log_beta1, log_beta2, new1, keep2, new2, eps = betas
    # 1 − βⁿ in float64: a β near 1 and a small n leave few digits of it in float32.
    step = step.to(tl.float64)
    rate = (lr / (1.0 - tl.exp(step * log_beta1))).to(tl.float32)
    root = (1.0 / tl.sqrt(1.0 - tl.exp(step * log_beta2))).to(tl.float32)
    m += new1 * (g - m)  # (1)
    v = keep2 * v + new2 * g * g
    return m, v, rate * m / (tl.sqrt(v) * root + eps)  # (2)
