"""Embedding on the CPU. In the backward each thread owns a band of channels: no two meet, no order is left open."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import THREADED, Kernel, inlined, worker_count
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, tokens, weight) -> list[Native]:
    return [EMBEDDING.bind(y.size, y, tokens, weight)]


def backward(dweight, dy, tokens, add=NONE) -> list[Native]:
    adds = "dweight" in add
    size = dy.size if adds else dweight.size
    bands = worker_count(size, THREADED, dy.shape[1] // 16)
    return [EMBEDDING_BACKWARD.bind(size, dweight, dy, tokens, bands, adds)]


def embedding(y, tokens, weight):
    for r in prange(tokens.size):
        _copy(y[r], weight[tokens[r]])


@inlined
def _copy(to, row):
    for c in range(row.size):
        to[c] = row[c]


def embedding_backward(dweight, dy, tokens, bands, add):
    width = dy.shape[1]
    for band in prange(bands):
        low, high = width * band // bands, width * (band + 1) // bands
        if not add:
            dweight[:, low:high] = float32(0)
        for r in range(tokens.size):
            out, row = dweight[tokens[r], low:high], dy[r, low:high]
            for c in range(high - low):
                out[c] += row[c]


EMBEDDING, EMBEDDING_BACKWARD = Kernel(embedding), Kernel(embedding_backward)
