"""Sums over rows, in two stages and always in the same order: no program waits for another, and no two add to one
place. How the rows are cut depends on the shapes alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, put, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native

ROWS, COLUMNS = 32, 128  # of a tile
PROGRAMS = 1024  # enough to fill a device
# Of a program that adds up parts: its columns, and how many parts are under way at once. A program is short and waits
# for memory, so that is nearly all there are.
FOLDED, PARTS, WARPS = 16, 512, 8


def column_sums(total, x, add: bool, copy=None) -> list[Native]:
    """total[c] (+)= Σ_r x[r, c], and on the way a copy of x in another type."""
    rows, columns = x.shape
    height = part_height(rows, columns, ROWS, COLUMNS, PROGRAMS)
    partial = scratch(x, 1, blocks(rows, height), columns)
    grid = (partial.shape[1], blocks(columns, COLUMNS))
    arguments = (partial, copy, x, x.stride(0), rows, columns, height)
    return [launch(_part, grid, *arguments, ROWS=ROWS, COLUMNS=COLUMNS), fold(partial, (total, add))]


def part_height(rows, columns, tile_rows, tile_columns, programs):
    """How many rows one program sums, where so many programs fill a device."""
    parts = max(1, programs // blocks(columns, tile_columns))
    return blocks(blocks(rows, parts), tile_rows) * tile_rows


def fold(partial, *totals) -> Native:
    """total[c] (+)= Σ_p partial[n, p, c] for each of up to three (total, add)."""
    _, parts, columns = partial.shape
    grid = (blocks(columns, FOLDED), len(totals))
    given = [*totals, *[(None, False)] * (3 - len(totals))]
    options = {f"ADD{number}": add for number, (_, add) in enumerate(given)}
    tensors = (*(total for total, _ in given), partial)
    sizes = {"PARTS": min(PARTS, width(parts)), "COLUMNS": FOLDED, "num_warps": WARPS}
    return launch(_fold, grid, *tensors, parts, columns, **sizes, **options)


@triton.jit
def _part(PARTIAL, COPY, X, stride, R, C, height, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    part = tl.program_id(0)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(part * height, tl.minimum(part * height + height, R), ROWS, num_stages=3):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        x = numbers(X + r[:, None] * stride + c[None, :], inside)
        if COPY is not None:
            tl.store(COPY + r[:, None] * C + c[None, :], x, mask=inside)
        total += x
    tl.store(PARTIAL + part * C + c, tl.sum(total, 0), mask=c < C)


@triton.jit
def _fold(
    FIRST,
    SECOND,
    THIRD,
    PARTIAL,
    P,
    C,
    ADD0: tl.constexpr,
    ADD1: tl.constexpr,
    ADD2: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    which = tl.program_id(1)
    PARTIAL += which * P * C
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    for start in range(0, P, PARTS):
        p = start + tl.arange(0, PARTS)
        inside = (p < P)[:, None] & (c < C)[None, :]
        total += tl.load(PARTIAL + p[:, None] * C + c[None, :], mask=inside, other=0.0)
    found = tl.sum(total, 0)
    put(FIRST + c, found, c < tl.where(which == 0, C, 0), ADD0)
    if SECOND is not None:
        put(SECOND + c, found, c < tl.where(which == 1, C, 0), ADD1)
    if THIRD is not None:
        put(THIRD + c, found, c < tl.where(which == 2, C, 0), ADD2)
