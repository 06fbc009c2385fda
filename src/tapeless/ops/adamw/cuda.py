"""AdamW on the GPU: one pass over the arena, and over the copy of the weights that the products read, if there is one.

A block of weights knows which of the decayed spans may touch it, so that any span may begin anywhere.
"""

from __future__ import annotations

from math import log

import numpy as np
import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, blocks, launch, numbers

BLOCK = 2048


def forward(weights, m, v, gradients, scale, lr, step, beta1, beta2, eps, decay, decayed, working=None) -> list[Run]:
    """`working` is a copy of the weights in a narrower type, kept beside them."""
    size = weights.numel()
    spans, first = _spans(size, decayed)
    on_device = [torch.from_numpy(array).to(weights.device) for array in (spans, first)]
    betas = (log(beta1), log(beta2), 1 - beta1, beta2, 1 - beta2, eps, decay)
    arguments = (weights, working, m, v, gradients, scale, lr, step, *on_device, size, *betas)
    return [launch(_adamw, blocks(size, BLOCK), *arguments, BLOCK=BLOCK, num_warps=8)]


def _spans(size, decayed):
    """The spans in order, and for each block the first that ends after the block's start; one more entry says where
    the list ends."""
    spans = np.array(sorted(decayed), np.int64).reshape(-1, 2)
    starts = np.arange(0, size, BLOCK)
    first = np.searchsorted(spans[:, 1], starts, side="right")
    last = np.searchsorted(spans[:, 0], starts + BLOCK, side="left")
    return np.concatenate([spans, [[size, size]]]), np.stack([first, last], axis=1).astype(np.int32)


@triton.jit
def _adamw(
    WEIGHTS, WORKING, M, V, GRADIENTS, SCALE, LR, STEP, SPANS, REACH, N,
    log_beta1, log_beta2, new1, keep2, new2, eps, decay, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    step, lr = tl.load(STEP).to(tl.float64), tl.load(LR)
    # 1 − βⁿ in float64: a β near 1 and a small n leave few digits of it in float32.
    rate = (lr / (1.0 - tl.exp(step * log_beta1))).to(tl.float32)
    root = (1.0 / tl.sqrt(1.0 - tl.exp(step * log_beta2))).to(tl.float32)
    decays = tl.zeros((BLOCK,), tl.float32)
    for span in range(tl.load(REACH + 2 * block), tl.load(REACH + 2 * block + 1)):
        covered = (at >= tl.load(SPANS + 2 * span)) & (at < tl.load(SPANS + 2 * span + 1))
        decays = tl.where(covered, (lr * decay).to(tl.float32), decays)
    g = tl.load(SCALE).to(tl.float32) * numbers(GRADIENTS + at, inside)
    m, v, w = numbers(M + at, inside), numbers(V + at, inside), numbers(WEIGHTS + at, inside)
    m += new1 * (g - m)  # (1)
    v = keep2 * v + new2 * g * g
    tl.store(M + at, m, mask=inside)
    tl.store(V + at, v, mask=inside)
    w = w - decays * w - rate * m / (tl.sqrt(v) * root + eps)  # (3) (2)
    tl.store(WEIGHTS + at, w, mask=inside)
    if WORKING is not None:
        tl.store(WORKING + at, w, mask=inside)
