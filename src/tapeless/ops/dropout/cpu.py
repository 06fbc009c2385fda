"""Dropout on the CPU: four numbers at a time, as many as one counter gives."""

from __future__ import annotations

from numba import float32, prange, uint64

from tapeless.kernels.cpu import Kernel, block_count, flat, inlined
from tapeless.kernels.native import Native
from tapeless.ops.dropout.reference import M0, M1, ROUNDS, W0, W1, WORD, threshold

BLOCK = 16384  # a multiple of 4
HALF, LOW = uint64(32), uint64(WORD)
FACTOR0, FACTOR1, STEP0, STEP1 = uint64(M0), uint64(M1), uint64(W0), uint64(W1)


def forward(y, x, seed, draws, rate, site) -> list[Native]:
    return [DROPOUT.bind(x.size, *flat(y, x), seed, draws, threshold(rate), 1 / (1 - rate), site)]


def backward(dx, dy, seed, draws, rate, site) -> list[Native]:
    return forward(dx, dy, seed, draws, rate, site)


def dropout(y, x, seed, draws, threshold, scale, site):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        end = min(at + BLOCK, x.size)
        whole = at + (end - at) // 4 * 4
        _drop(y[at:whole], x[at:whole], at // 4, seed[0], draws[0], threshold, scale, site)
        if whole < end:
            words = _words(whole // 4, seed[0], draws[0], site)
            for i in range(whole, end):
                y[i] = x[i] * _factor(words[i - whole], uint64(threshold), float32(scale))


@inlined
def _drop(y, x, first, seed, draws, threshold, scale, site):
    limit, factor = uint64(threshold), float32(scale)
    for i in range(x.size // 4):
        a, b, c, d = _words(first + i, seed, draws, site)
        y[4 * i] = x[4 * i] * _factor(a, limit, factor)
        y[4 * i + 1] = x[4 * i + 1] * _factor(b, limit, factor)
        y[4 * i + 2] = x[4 * i + 2] * _factor(c, limit, factor)
        y[4 * i + 3] = x[4 * i + 3] * _factor(d, limit, factor)


@inlined
def _factor(word, limit, factor):
    return factor if word >= limit else float32(0)


@inlined
def _words(counter, seed, draws, site):
    a, b, c, d = uint64(counter), uint64(site), uint64(draws) & LOW, uint64(draws) >> HALF
    k, l = uint64(seed) & LOW, uint64(seed) >> HALF  # noqa: E741
    for _ in range(ROUNDS):
        one, other = a * FACTOR0, c * FACTOR1
        a, b, c, d = (other >> HALF) ^ b ^ k, other & LOW, (one >> HALF) ^ d ^ l, one & LOW
        k, l = (k + STEP0) & LOW, (l + STEP1) & LOW  # noqa: E741
    return a, b, c, d


DROPOUT = Kernel(dropout)
