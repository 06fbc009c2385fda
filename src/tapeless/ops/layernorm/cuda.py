"""LayerNorm on the GPU. A program holds whole rows; in the backward it goes over many, and keeps its own sums for the
gradients of weight and bias until it is through: those of all programs are then added in their order.

The mean of a float32 row far from zero is off by its rounding. What is left of the row's mean is taken off again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sums import fold
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

# Of the backward: 4 programs for each of an H200's 132 multiprocessors, with the rows that come next under way.
PROGRAMS, STAGES = 528, 3


def forward(y, mean, rstd, x, weight, bias, eps, total=None, branch=None) -> list[Native]:
    """With `branch`, of total = x + branch, which is written too: a residual and the norm after it in one pass."""
    rows, channels = x.shape
    arguments = (y, mean, rstd, total, x, branch, weight, bias, channels, eps)
    return [launch(_forward, rows, *arguments, WIDTH=width(channels), num_warps=max(1, width(channels) // 512))]


def backward(dx, dweight, dbias, dy, x, weight, mean, rstd, add=NONE, copy=None, dbelow=None) -> list[Native]:
    """`copy` is what dx becomes, in another type, and (+)= its column sums go to `dbelow`: what the linear below the
    norm begins with, while dx is at hand."""
    rows, channels = x.shape
    height = blocks(rows, PROGRAMS)
    programs = blocks(rows, height)
    sums = {"dweight": dweight, "dbias": dbias, "dbelow": dbelow}
    asked = [name for name, total in sums.items() if total is not None]
    partial = scratch(x, len(asked), programs, channels) if asked else ()
    parts = [partial[asked.index(name)] if name in asked else None for name in sums]
    run = launch(
        _backward,
        programs,
        dx,
        copy,
        *parts,
        dy,
        x,
        weight,
        mean,
        rstd,
        rows,
        channels,
        height,
        ADD="dx" in add,
        WIDTH=width(channels),
        STAGES=STAGES,
        num_warps=max(1, width(channels) // 512),
    )
    return [run, fold(partial, *((sums[name], name in add) for name in asked))] if asked else [run]


@triton.jit
def _forward(Y, MEAN, RSTD, TOTAL, X, BRANCH, WEIGHT, BIAS, C, eps, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH)
    inside = c < C
    x = numbers(X + row * C + c, inside)
    if BRANCH is not None:
        x += numbers(BRANCH + row * C + c, inside)
        tl.store(TOTAL + row * C + c, x, mask=inside)
        x = x.to(TOTAL.dtype.element_ty).to(tl.float32)  # as the backward will read it
    mean = tl.sum(x, 0) / C  # (1)
    centred = tl.where(inside, x - mean, 0.0)
    centred = tl.where(inside, centred - tl.sum(centred, 0) / C, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / C + eps)
    tl.store(MEAN + row, mean)
    tl.store(RSTD + row, rstd)
    y = centred * rstd * numbers(WEIGHT + c, inside) + numbers(BIAS + c, inside)  # (2)
    tl.store(Y + row * C + c, y, mask=inside)


@triton.jit
def _backward(
    DX,
    COPY,
    DWEIGHT,
    DBIAS,
    DBELOW,
    DY,
    X,
    WEIGHT,
    MEAN,
    RSTD,
    R,
    C,
    height,
    ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    c = tl.arange(0, WIDTH)
    inside = c < C
    weight = numbers(WEIGHT + c, inside)
    scales = tl.zeros((WIDTH,), tl.float32)
    shifts = tl.zeros((WIDTH,), tl.float32)
    below = tl.zeros((WIDTH,), tl.float32)
    for r in tl.range(program * height, tl.minimum(program * height + height, R), num_stages=STAGES):
        at = tl.cast(r, tl.int64) * C + c
        dy, rstd = numbers(DY + at, inside), tl.load(RSTD + r)
        centred = tl.where(inside, numbers(X + at, inside) - tl.load(MEAN + r), 0.0)
        g = dy * weight
        rest, pull, tilt = tl.sum(centred, 0) / C, tl.sum(g, 0) / C, tl.sum(g * centred, 0) / C
        xhat = (centred - rest) * rstd
        tilt = (tilt - rest * pull) * rstd  # mean of g · x̂, from the sums that were made at once
        scales += dy * xhat  # (3)
        shifts += dy
        if DX is not None:
            dx = rstd * (g - pull - xhat * tilt)  # (4)
            if ADD:
                dx += numbers(DX + at, inside)
            tl.store(DX + at, dx, mask=inside)
            if COPY is not None:
                tl.store(COPY + at, dx, mask=inside)
            below += dx
    if DWEIGHT is not None:
        tl.store(DWEIGHT + program * C + c, scales, mask=inside)
    if DBIAS is not None:
        tl.store(DBIAS + program * C + c, shifts, mask=inside)
    if DBELOW is not None:
        tl.store(DBELOW + program * C + c, below, mask=inside)
