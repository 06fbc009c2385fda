"""Sums over rows, in two stages and always in the same order: no program waits for another, and no two add to one
place. How the rows are cut depends on the shapes alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, blocks, launch, numbers, put, scratch

ROWS, COLUMNS = 32, 128  # of a tile
PROGRAMS = 1024  # enough to fill a device


def column_sums(total, x, add: bool, copy=None) -> list[Run]:
    """total[c] (+)= Σ_r x[r, c], and on the way a copy of x in another type."""
    rows, columns = x.shape
    across = blocks(columns, COLUMNS)
    height = blocks(blocks(rows, max(1, PROGRAMS // across)), ROWS) * ROWS
    parts = blocks(rows, height)
    partial = scratch(x, parts, columns)
    first = launch(
        _part, (parts, across), partial, copy, x, x.stride(0), rows, columns, height, ROWS=ROWS, COLUMNS=COLUMNS
    )
    return [first, *fold(total, partial, add)]


def fold(total, partial, add: bool) -> list[Run]:
    """total[c] (+)= Σ_p partial[p, c]; the parts may lie any distance apart."""
    parts, columns = partial.shape
    options = {"ADD": add, "PARTS": 64, "COLUMNS": 16}
    return [launch(_fold, blocks(columns, 16), total, partial, partial.stride(0), parts, columns, **options)]


@triton.jit
def _part(partial, copy, x, stride, R, C, height, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    part = tl.program_id(0)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for at in range(part * height, tl.minimum(part * height + height, R), ROWS):
        r = (at + tl.arange(0, ROWS)).to(tl.int64)
        inside = (r < R)[:, None] & (c < C)[None, :]
        value = numbers(x + r[:, None] * stride + c[None, :], inside)
        if copy is not None:
            tl.store(copy + r[:, None] * C + c[None, :], value, mask=inside)
        total += value
    tl.store(partial + part * C + c, tl.sum(total, 0), mask=c < C)


@triton.jit
def _fold(total, partial, stride, P, C, ADD: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros((PARTS, COLUMNS), tl.float32)
    for at in range(0, P, PARTS):
        p = at + tl.arange(0, PARTS)
        found += tl.load(
            partial + p[:, None] * stride + c[None, :], mask=(p < P)[:, None] & (c < C)[None, :], other=0.0
        )
    put(total + c, tl.sum(found, 0), c < C, ADD)
