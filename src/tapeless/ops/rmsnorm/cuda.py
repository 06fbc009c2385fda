"""RMSNorm on the GPU. A program holds a whole stretch; in the backward it goes over many, and keeps its own sums for
the gradient of the weight until it is through: those of all programs are then added in their order."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sums import fold
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

PROGRAMS, STAGES = 528, 3  # of the backward, as LayerNorm's


def forward(y, rstd, x, weight, eps) -> list[Native]:
    heads, size = rstd.shape[1], len(weight)
    arguments = (y, rstd, x, weight, y.stride(0), x.stride(0), heads, size, eps)
    return [launch(_forward, rstd.numel(), *arguments, WIDTH=width(size), num_warps=max(1, width(size) // 512))]


def backward(dx, dweight, dy, x, weight, rstd, add=NONE) -> list[Native]:
    heads, size, stretches = rstd.shape[1], len(weight), rstd.numel()
    height = blocks(stretches, PROGRAMS)
    programs = blocks(stretches, height)
    partial = None if dweight is None else scratch(x, 1, programs, size)
    strides = (0 if dx is None else dx.stride(0), dy.stride(0), x.stride(0))
    run = launch(
        _backward, programs, dx, partial, dy, x, weight, rstd, *strides, stretches, heads, size, height,
        ADD="dx" in add, WIDTH=width(size), STAGES=STAGES, num_warps=max(1, width(size) // 512),
    )  # fmt: skip
    return [run] if partial is None else [run, fold(partial, (dweight, "dweight" in add))]


@triton.jit
def _forward(Y, RSTD, X, WEIGHT, y_step, x_step, H, D, eps, WIDTH: tl.constexpr):
    stretch = tl.program_id(0).to(tl.int64)
    row, head = stretch // H, stretch % H
    d = tl.arange(0, WIDTH)
    inside = d < D
    x = numbers(X + row * x_step + head * D + d, inside)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)  # (1)
    tl.store(RSTD + stretch, rstd)
    tl.store(Y + row * y_step + head * D + d, x * rstd * numbers(WEIGHT + d, inside), mask=inside)  # (2)


@triton.jit
def _backward(
    DX, DWEIGHT, DY, X, WEIGHT, RSTD, dx_step, dy_step, x_step, N, H, D, height,
    ADD: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    d = tl.arange(0, WIDTH)
    inside = d < D
    weight = numbers(WEIGHT + d, inside)
    scales = tl.zeros((WIDTH,), tl.float32)
    for n in tl.range(program * height, tl.minimum(program * height + height, N), num_stages=STAGES):
        row, at = tl.cast(n // H, tl.int64), n % H * D + d
        dy, rstd = numbers(DY + row * dy_step + at, inside), tl.load(RSTD + n)
        xhat = numbers(X + row * x_step + at, inside) * rstd
        g = dy * weight
        scales += dy * xhat  # (3)
        if DX is not None:
            dx = rstd * (g - xhat * (tl.sum(g * xhat, 0) / D))  # (4)
            if ADD:
                dx += numbers(DX + row * dx_step + at, inside)
            tl.store(DX + row * dx_step + at, dx, mask=inside)
    if DWEIGHT is not None:
        tl.store(DWEIGHT + program * D + d, scales, mask=inside)
