"""Embedding on the GPU.

The backward adds every row of dy to its token's row of the table with no two programs adding to one place: the rows
are sorted by token, each program sums a fixed number of them in their order, and what belongs to a token that goes on
in the next program is set aside and added, again in order, at the end.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, put, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

ROWS = 32  # of dy that a program sums
COLUMNS = 256


def forward(y, tokens, weight) -> list[Native]:
    rows, channels = y.shape
    return [launch(_forward, rows, y, tokens, weight, weight.stride(0), channels, WIDTH=width(channels))]


def backward(dweight, dy, tokens, add=NONE) -> list[Native]:
    rows, channels = dy.shape
    programs, block = blocks(rows, ROWS), min(COLUMNS, width(channels))
    short, words = (scratch(dy, rows, dtype=torch.int32) for _ in range(2))  # half the work of sorting
    order = scratch(dy, rows, dtype=torch.int64)
    aside = scratch(dy, programs, 2, channels)
    grid, shared = (programs, blocks(channels, block)), (words, order, rows, channels)
    options = {"ROWS": ROWS, "COLUMNS": block, "num_warps": max(1, block // 64)}
    return [
        *([] if "dweight" in add else [dweight.zero_]),
        partial(short.copy_, tokens),
        partial(torch.sort, short, stable=True, out=(words, order)),
        launch(_backward, grid, dweight, aside, dy, dy.stride(0), *shared, **options),
        launch(_join, grid, dweight, aside, words, rows, channels, **options),
    ]


@triton.jit
def _forward(Y, TOKENS, WEIGHT, stride, C, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH)
    tl.store(Y + row * C + c, numbers(WEIGHT + tl.load(TOKENS + row) * stride + c, c < C), mask=c < C)  # (1)


@triton.jit
def _backward(DWEIGHT, ASIDE, DY, stride, WORDS, ORDER, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """ASIDE holds for each program the sum for a token that began before it, and for one that goes on after it."""
    program = tl.program_id(0)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = c < C
    first = program * ROWS
    last = tl.minimum(first + ROWS, R)
    began_here = tl.load(WORDS + first) != tl.load(WORDS + first - 1, mask=first > 0, other=-1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for at in range(first, last):
        word, following = tl.load(WORDS + at), tl.load(WORDS + at + 1, mask=at + 1 < R, other=-1)
        total += numbers(DY + tl.load(ORDER + at) * stride + c, inside)
        if following != word:
            if began_here:
                put(DWEIGHT + word.to(tl.int64) * C + c, total, inside, True)  # (2)
            else:
                tl.store(ASIDE + program * 2 * C + c, total, mask=inside)
            total = tl.zeros((COLUMNS,), tl.float32)
            began_here = following != word
    if tl.load(WORDS + last, mask=last < R, other=-1) == tl.load(WORDS + last - 1):
        tl.store(ASIDE + (program * 2 + began_here.to(tl.int32)) * C + c, total, mask=inside)


@triton.jit
def _join(DWEIGHT, ASIDE, WORDS, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The program in which a token began that went on adds up what was set aside for it."""
    program = tl.program_id(0)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = c < C
    first = program * ROWS
    last = tl.minimum(first + ROWS, R)
    word = tl.load(WORDS + last - 1)
    goes_on = tl.load(WORDS + last, mask=last < R, other=-1) == word
    began_before = tl.load(WORDS + first - 1, mask=first > 0, other=-1) == word
    if goes_on and not began_before:
        total = tl.load(ASIDE + (program * 2 + 1) * C + c, mask=inside, other=0.0)
        following = program + 1
        while tl.load(WORDS + following * ROWS, mask=following * ROWS < R, other=-1) == word:
            total += tl.load(ASIDE + following * 2 * C + c, mask=inside, other=0.0)
            following += 1
        put(DWEIGHT + word.to(tl.int64) * C + c, total, inside, True)
