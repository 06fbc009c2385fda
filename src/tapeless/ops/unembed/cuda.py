"""Unembed on the GPU. Where V is odd the products go through rows of scores that are rounded up, some at a time."""

from __future__ import annotations

from functools import partial

from tapeless.kernels.cuda.products import product
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.vocabulary import VocabularyTable
from tapeless.kernels.native import Native

HELD = 2**25  # scores that are rounded up at a time


def forward(y, x, weight) -> list[Native]:
    words, table = len(weight), VocabularyTable(weight)
    if table.width == words:
        return product(y, x, weight.T)  # (1)
    height = max(1, min(len(x), HELD // table.width))
    held = scratch(y, height, table.width, dtype=weight.dtype)
    runs: list[Native] = [*table.runs]
    for start in range(0, len(x), height):
        rows = slice(start, min(start + height, len(x)))
        z = held[: rows.stop - start]
        runs += [*table.scores(z, x[rows]), partial(y[rows].copy_, z[:, :words])]
    return runs


def backward(dx, dweight, dy, x, weight) -> list[Native]:
    return [*product(dx, dy, weight), *product(dweight, dy.T, x)]  # (2) (3)
