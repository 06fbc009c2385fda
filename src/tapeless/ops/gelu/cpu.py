"""GELU on the CPU. ½ (1 + tanh u) = sigmoid(2u), so one exp and one division do for both directions."""

from __future__ import annotations

from math import pi, sqrt

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, block_count, exp, flat, inlined
from tapeless.kernels.native import Native

BLOCK = 16384
SCALE = float32(2 * sqrt(2 / pi))
CUBIC = float32(2 * sqrt(2 / pi) * 0.044715)
# Here exp(2u) is 2e38, nearly the largest float32. Above it sigmoid(2u) is 1; below its negative, gelu and its slope
# are smaller than a float32 that keeps its digits.
FAR = float32(10.04)


def forward(y, x) -> list[Native]:
    return [GELU.bind(x.size, *flat(y, x))]


def backward(dx, dy, x) -> list[Native]:
    return [GELU_BACKWARD.bind(x.size, *flat(dx, dy, x))]


def gelu(y, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _gelu(y[at : at + BLOCK], x[at : at + BLOCK])


def gelu_backward(dx, dy, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _gelu_backward(dx[at : at + BLOCK], dy[at : at + BLOCK], x[at : at + BLOCK])


@inlined
def _within(x):
    """x where sigmoid(2u) changes, else the end of that range: nothing made from it overflows. NaN stays NaN."""
    x = -FAR if x < -FAR else x
    return FAR if x > FAR else x


@inlined
def _falling(x):
    """exp(−2u), from which sigmoid(2u) = 1 / (1 + exp(−2u)); finite for an x within."""
    return exp(-x * (SCALE + CUBIC * (x * x)))


@inlined
def _gelu(y, x):
    """Far below, y is x · 0: that of −∞ is NaN, as in the reference, and is noticed."""
    for i in range(x.size):
        part = x[i] / (float32(1) + _falling(_within(x[i])))
        y[i] = x[i] * float32(0) if x[i] < -FAR else part


@inlined
def _gelu_backward(dx, dy, x):
    """s and its slope share a factor s, taken out: for negative x the two nearly cancel. e may be 2e38 and s as small,
    so that e · s comes first: (x · e) · s would overflow."""
    for i in range(x.size):
        z = _within(x[i])
        e = _falling(z)
        s = float32(1) / (float32(1) + e)
        dx[i] = dy[i] * (s * (float32(1) + z * (e * s) * (SCALE + float32(3) * CUBIC * (z * z))))


GELU, GELU_BACKWARD = Kernel(gelu), Kernel(gelu_backward)
