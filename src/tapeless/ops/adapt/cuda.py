"""Adapt on the GPU. A product that is scaled, and added to where the call adds, is cuBLAS's.

The backward reads dy, which is as large as what is adapted, for two gradients of next to no size: in bfloat16 one pass
makes both. A program has some of the rows and some of the columns: of its columns it sums lowᵀ @ dy over its rows, of
its rows dy @ weightᵀ over its columns. A second kernel adds up what the programs have found.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, put, width
from tapeless.kernels.cuda.products import factor, product
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

TYPES, RANK, LEAST = (torch.bfloat16,), 64, 1024  # of weights that one pass takes, their most rows, fewest columns
ROWS, COLUMNS, STAGES, PROGRAMS = 64, 256, 3, 132  # of a tile, and about how many go down the rows
ADDED = 512  # elements of a program that adds up parts


def forward(y, low, weight, scale, add=NONE) -> list[Native]:
    return product(y, low, weight, "y" in add, scale)


def backward(dlow, dweight, dy, low, weight, scale, add=NONE) -> list[Native]:
    runs: list[Native] = []
    dy = factor(dy, weight.dtype, runs)  # once for both
    if dlow is not None and dweight is not None and _pays(weight):
        return runs + _together(dlow, dweight, dy, low, weight, scale, add)
    if dweight is not None:
        runs += product(dweight, low.T, dy, "dweight" in add, scale)
    if dlow is not None:
        runs += product(dlow, dy, weight.T, "dlow" in add, scale)
    return runs


def _pays(weight) -> bool:
    rank, columns = weight.shape
    return weight.dtype in TYPES and rank <= RANK and columns >= LEAST


def _together(dlow, dweight, dy, low, weight, scale, add) -> list[Native]:
    (rows, rank), columns = low.shape, weight.shape[1]
    across = blocks(columns, COLUMNS)
    height = blocks(blocks(rows, max(1, PROGRAMS // across)), ROWS) * ROWS
    down = blocks(rows, height)
    dlow_parts, dweight_parts = scratch(dy, across, rows, rank), scratch(dy, down, rank, columns)
    steps = (dy.stride(0), low.stride(0), weight.stride(0))
    tile = {"ROWS": ROWS, "COLUMNS": COLUMNS, "RANK": max(16, width(rank)), "STAGES": STAGES}
    sizes = (rows, columns, rank, height)
    first = launch(_parts, (down, across), dlow_parts, dweight_parts, dy, low, weight, *steps, *sizes, **tile)
    programs = blocks(rows * rank, ADDED)
    outs = (dlow, dlow.stride(0), dlow_parts, across, rank, rows, dweight, dweight.stride(0), dweight_parts, down)
    options = {"ADD_DLOW": "dlow" in add, "ADD_DWEIGHT": "dweight" in add, "ADDED": ADDED}
    grid = programs + blocks(rank * columns, ADDED)
    return [first, launch(_add_up, grid, *outs, columns, scale, programs, **options)]


@triton.jit
def _parts(
    DLOW_PARTS,
    DWEIGHT_PARTS,
    DY,
    LOW,
    WEIGHT,
    dy_row,
    low_row,
    weight_row,
    R,
    F,
    M,
    height,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
    STAGES: tl.constexpr,
):
    part, across = tl.program_id(0), tl.program_id(1)
    f, m = across * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, RANK)
    inside = (m < M)[:, None] & (f < F)[None, :]
    weight = tl.load(WEIGHT + m[:, None] * weight_row + f[None, :], mask=inside, other=0.0)
    total = tl.zeros((COLUMNS, RANK), tl.float32)
    for start in tl.range(part * height, tl.minimum(part * height + height, R), ROWS, num_stages=STAGES):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        dy = tl.load(DY + r[:, None] * dy_row + f[None, :], mask=(r < R)[:, None] & (f < F)[None, :], other=0.0)
        of_low = (r < R)[:, None] & (m < M)[None, :]
        low = tl.load(LOW + r[:, None] * low_row + m[None, :], mask=of_low, other=0.0)
        total = tl.dot(tl.trans(dy), low, total)
        dlow = tl.dot(dy, tl.trans(weight))
        tl.store(DLOW_PARTS + (across * R + r)[:, None] * M + m[None, :], dlow, mask=of_low)
    tl.store(DWEIGHT_PARTS + (part * M + m)[None, :] * F + f[:, None], total, mask=tl.trans(inside))


@triton.jit
def _add_up(
    DLOW,
    dlow_row,
    DLOW_PARTS,
    across,
    M,
    R,
    DWEIGHT,
    dweight_row,
    DWEIGHT_PARTS,
    down,
    F,
    scale,
    programs,
    ADD_DLOW: tl.constexpr,
    ADD_DWEIGHT: tl.constexpr,
    ADDED: tl.constexpr,
):
    """The first `programs` have elements of dlow, the others of dweight."""
    number = tl.program_id(0)
    if number < programs:
        _sum(DLOW, dlow_row, DLOW_PARTS, across, R * M, M, number, scale, ADD_DLOW, ADDED)
    else:
        _sum(DWEIGHT, dweight_row, DWEIGHT_PARTS, down, M * F, F, number - programs, scale, ADD_DWEIGHT, ADDED)


@triton.jit
def _sum(OUT, row, PARTS, count, size, columns, number, scale, ADD: tl.constexpr, ADDED: tl.constexpr):
    at = number * ADDED + tl.arange(0, ADDED)
    total = tl.zeros((ADDED,), tl.float32)
    for _ in range(count):
        total += tl.load(PARTS + at, mask=at < size, other=0.0)
        PARTS += size
    put(OUT + (at // columns).to(tl.int64) * row + at % columns, scale * total, at < size, ADD)
