"""Global norm on the GPU, in float64: programs sum their part of the gradients, and one adds up the parts in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, blocks, launch, scratch

PROGRAMS = 1056
BLOCK = 2048


def forward(norm, gradients) -> list[Run]:
    size = gradients.numel()
    height = blocks(blocks(size, PROGRAMS), BLOCK) * BLOCK
    programs = blocks(size, height)
    partial = scratch(gradients, programs, dtype=torch.float64)
    return [
        launch(_part, programs, partial, gradients, size, height, BLOCK=BLOCK, num_warps=8),
        launch(_root, 1, norm, partial, programs, BLOCK=triton.next_power_of_2(programs)),
    ]


@triton.jit
def _part(PARTIAL, GRADIENTS, N, height, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * height
    total = tl.zeros((BLOCK,), tl.float64)
    for offset in range(0, height, BLOCK):
        at = start + offset + tl.arange(0, BLOCK)
        g = tl.load(GRADIENTS + at, mask=at < N, other=0.0).to(tl.float64)
        total += g * g
    tl.store(PARTIAL + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _root(NORM, PARTIAL, programs, BLOCK: tl.constexpr):
    p = tl.arange(0, BLOCK)
    tl.store(NORM, tl.sqrt(tl.sum(tl.load(PARTIAL + p, mask=p < programs, other=0.0), 0)))  # (1)
