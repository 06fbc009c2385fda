"""GELU on the GPU. ½ (1 + tanh u) = sigmoid(2u), so one exp and one division do for both directions."""

from __future__ import annotations

from math import pi, sqrt

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import along, blocks, launch, numbers
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sums import fold, part_height
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

ROWS, COLUMNS, PROGRAMS, STAGES = 16, 128, 4096, 3  # of the backward that also sums: a tile, and about how many

SCALE = tl.constexpr(2 * sqrt(2 / pi))
CUBIC = tl.constexpr(2 * sqrt(2 / pi) * 0.044715)
# Here exp(2u) is 2e38, nearly the largest float32. Above it sigmoid(2u) is 1; below its negative, gelu and its slope
# are smaller than a float32 that keeps its digits.
FAR = tl.constexpr(10.04)


def forward(y, x) -> list[Native]:
    return along(_forward, y, x)


def backward(dx, dy, x, y=None, dbias=None, add=NONE) -> list[Native]:
    """With `dbias` also (+)= the column sums of dx, the gradient of the bias that x was made with, and with `y` the
    activation once more, for the weights that read it: all from one pass."""
    if dbias is None and y is None:
        return along(_backward, dx, dy, x)
    rows, columns = x.shape
    height = part_height(rows, columns, ROWS, COLUMNS, PROGRAMS)
    parts = blocks(rows, height)
    partial = None if dbias is None else scratch(x, 1, parts, columns)
    arguments = (dx, y, partial, dy, x, rows, columns, height)
    grid, tile = (parts, blocks(columns, COLUMNS)), {"ROWS": ROWS, "COLUMNS": COLUMNS, "STAGES": STAGES}
    run = launch(_backward_and_sums, grid, *arguments, **tile)
    return [run] if dbias is None else [run, fold(partial, (dbias, "dbias" in add))]


@triton.jit
def _forward(Y, X, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, gelu(numbers(X + at, at < N)), mask=at < N)


@triton.jit
def _backward(DX, DY, X, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(DX + at, numbers(DY + at, at < N) * slope(numbers(X + at, at < N)), mask=at < N)


@triton.jit
def _backward_and_sums(
    DX, Y, PARTIAL, DY, X, R, F, height, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr
):
    part = tl.program_id(0)
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(part * height, tl.minimum(part * height + height, R), ROWS, num_stages=STAGES):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        at, inside = r[:, None] * F + f[None, :], (r < R)[:, None] & (f < F)[None, :]
        x = numbers(X + at, inside)
        share, steep = _share_and_slope(x)
        dx = numbers(DY + at, inside) * steep
        tl.store(DX + at, dx, mask=inside)
        if Y is not None:
            tl.store(Y + at, tl.where(x < -FAR, x * 0.0, x * share), mask=inside)
        total += dx
    if PARTIAL is not None:
        tl.store(PARTIAL + part * F + f, tl.sum(total, 0), mask=f < F)


@triton.jit
def _within(x):
    """x where sigmoid(2u) changes, else the end of that range: nothing made from it overflows. NaN stays NaN."""
    x = tl.where(x < -FAR, -FAR, x)
    return tl.where(x > FAR, FAR, x)


@triton.jit
def _falling(x):
    """exp(−2u), from which sigmoid(2u) = 1 / (1 + exp(−2u)); finite for an x within."""
    return tl.exp(-x * (SCALE + CUBIC * (x * x)))


@triton.jit
def gelu(x):
    """Far below, x · 0: that of −∞ is NaN, as in the reference, and is noticed."""
    return tl.where(x < -FAR, x * 0.0, x / (1.0 + _falling(_within(x))))


@triton.jit
def slope(x):
    return _share_and_slope(x)[1]


@triton.jit
def _share_and_slope(x):
    """s = sigmoid(2u), by which gelu(x) = x · s, and the slope of that. Both have a factor s, taken out: for negative x
    the two terms nearly cancel. e may be 2e38 and s as small, so that e · s comes first: (x · e) · s would overflow."""
    z = _within(x)
    e = _falling(z)
    s = 1.0 / (1.0 + e)
    return s, s * (1.0 + z * (e * s) * (SCALE + 3.0 * CUBIC * (z * z)))
