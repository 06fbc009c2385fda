"""Proximity on the GPU: a product in float32, and what it has to be corrected by."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, width
from tapeless.kernels.cuda.products import product
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sums import column_sums
from tapeless.kernels.native import Native

WORDS = 1024


def forward(y, x, weight) -> list[Native]:
    rows, words = y.shape
    sizes = [scratch(x, len(each)) for each in (x, weight)]
    inner, wide = scratch(y, rows, words), width(x.shape[1])
    return [
        launch(_sizes, rows, sizes[0], x, x.shape[1], WIDTH=wide),
        launch(_sizes, words, sizes[1], weight, x.shape[1], WIDTH=wide),
        *product(inner, x, weight.T, times=2.0),
        launch(_distances, (rows, blocks(words, WORDS)), y, inner, *sizes, words, WORDS=WORDS),
    ]


def backward(dx, dweight, dy, x, weight) -> list[Native]:
    rows, words = dy.shape
    channels = x.shape[1]
    down, across, wide = scratch(dy, words), scratch(dy, rows), width(channels)
    inner_x, inner_weight = scratch(dx, rows, channels), scratch(dx, words, channels)
    return [
        *column_sums(down, dy, False),
        launch(_row_sums, rows, across, dy, words, WORDS=WORDS),
        *product(inner_x, dy, weight, times=2.0),
        *product(inner_weight, dy.T, x, times=2.0),
        launch(_corrected, rows, dx, inner_x, x, across, channels, WIDTH=wide),  # (2)
        launch(_corrected, words, dweight, inner_weight, weight, down, channels, WIDTH=wide),  # (3)
    ]


@triton.jit
def _sizes(SIZES, X, C, WIDTH: tl.constexpr):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    x = numbers(X + row * C + c, c < C)
    tl.store(SIZES + row, tl.sum(x * x, 0))


@triton.jit
def _distances(Y, INNER, ROWS, COLUMNS, V, WORDS: tl.constexpr):
    row, v = tl.program_id(0).to(tl.int64), tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    y = numbers(INNER + row * V + v, v < V) - tl.load(ROWS + row) - numbers(COLUMNS + v, v < V)  # (1)
    tl.store(Y + row * V + v, y, mask=v < V)


@triton.jit
def _row_sums(TOTAL, DY, V, WORDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((WORDS,), tl.float32)
    for at in range(0, V, WORDS):
        v = at + tl.arange(0, WORDS)
        total += numbers(DY + row * V + v, v < V)
    tl.store(TOTAL + row, tl.sum(total, 0))


@triton.jit
def _corrected(OUT, INNER, X, SUMS, C, WIDTH: tl.constexpr):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inner, x = numbers(INNER + row * C + c, c < C), numbers(X + row * C + c, c < C)
    tl.store(OUT + row * C + c, inner - 2.0 * tl.load(SUMS + row) * x, mask=c < C)
