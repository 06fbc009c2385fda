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


def forward(y, rstd, x, weight, eps, total=None, branch=None) -> list[Native]:
    """With `branch`, of total = x + branch, which is written too, where whole rows are normed: a residual and the norm
    after it in one pass."""
    heads, size = rstd.shape[1], len(weight)
    arguments = (y, rstd, total, x, branch, weight, y.stride(0), x.stride(0), heads, size, eps)
    return [launch(_forward, rstd.numel(), *arguments, WIDTH=width(size), num_warps=max(1, width(size) // 512))]


def backward(dx, dweight, dy, x, weight, rstd, add=NONE, copy=None, dbelow=None) -> list[Native]:
    """`copy` is what dx becomes, in another type, and (+)= its column sums go to `dbelow`: what the linear below a norm
    of whole rows begins with, while dx is at hand."""
    heads, size, stretches = rstd.shape[1], len(weight), rstd.numel()
    height = blocks(stretches, PROGRAMS)
    programs = blocks(stretches, height)
    sums = {"dweight": dweight, "dbelow": dbelow}
    asked = [name for name, total in sums.items() if total is not None]
    partial = scratch(x, len(asked), programs, size) if asked else ()
    parts = [partial[asked.index(name)] if name in asked else None for name in sums]
    strides = (0 if dx is None else dx.stride(0), dy.stride(0), x.stride(0))
    run = launch(
        _backward,
        programs,
        dx,
        copy,
        *parts,
        dy,
        x,
        weight,
        rstd,
        *strides,
        stretches,
        heads,
        size,
        height,
        ADD="dx" in add,
        WIDTH=width(size),
        STAGES=STAGES,
        num_warps=max(1, width(size) // 512),
    )
    return [run, fold(partial, *((sums[name], name in add) for name in asked))] if asked else [run]


@triton.jit
def _forward(Y, RSTD, TOTAL, X, BRANCH, WEIGHT, y_step, x_step, H, D, eps, WIDTH: tl.constexpr):
    stretch = tl.program_id(0).to(tl.int64)
    row, head = stretch // H, stretch % H
    d = tl.arange(0, WIDTH)
    inside = d < D
    x = numbers(X + row * x_step + head * D + d, inside)
    if BRANCH is not None:
        x += numbers(BRANCH + row * D + d, inside)
        tl.store(TOTAL + row * D + d, x, mask=inside)
        x = x.to(TOTAL.dtype.element_ty).to(tl.float32)  # as the backward will read it
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)  # (1)
    tl.store(RSTD + stretch, rstd)
    tl.store(Y + row * y_step + head * D + d, x * rstd * numbers(WEIGHT + d, inside), mask=inside)  # (2)


@triton.jit
def _backward(
    DX,
    COPY,
    DWEIGHT,
    DBELOW,
    DY,
    X,
    WEIGHT,
    RSTD,
    dx_step,
    dy_step,
    x_step,
    N,
    H,
    D,
    height,
    ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    d = tl.arange(0, WIDTH)
    inside = d < D
    weight = numbers(WEIGHT + d, inside)
    scales = tl.zeros((WIDTH,), tl.float32)
    below = tl.zeros((WIDTH,), tl.float32)
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
            if COPY is not None:
                tl.store(COPY + row * D + d, dx, mask=inside)
            below += dx
    if DWEIGHT is not None:
        tl.store(DWEIGHT + program * D + d, scales, mask=inside)
    if DBELOW is not None:
        tl.store(DBELOW + program * D + d, below, mask=inside)
