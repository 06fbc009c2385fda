"""GELU on the CPU. ½ (1 + tanh u) = sigmoid(2u), so one exp and one division do for both directions."""

from __future__ import annotations

from math import pi, sqrt

from numba import float32, prange

from tapeless.backends.blas import Run
from tapeless.backends.compile import Kernel, flat
from tapeless.backends.division import blocks
from tapeless.backends.vector import exp, inlined

BLOCK = 16384
SCALE = float32(2 * sqrt(2 / pi))
CUBIC = float32(2 * sqrt(2 / pi) * 0.044715)


def forward(y, x) -> list[Run]:
    return [GELU.bind(x.size, *flat(y, x))]


def backward(dx, dy, x) -> list[Run]:
    return [GELU_BACKWARD.bind(x.size, *flat(dx, dy, x))]


def gelu(y, x):
    for block in prange(blocks(x.size, BLOCK)):
        at = block * BLOCK
        _gelu(y[at : at + BLOCK], x[at : at + BLOCK])


def gelu_backward(dx, dy, x):
    for block in prange(blocks(x.size, BLOCK)):
        at = block * BLOCK
        _gelu_backward(dx[at : at + BLOCK], dy[at : at + BLOCK], x[at : at + BLOCK])


@inlined
def _falling(x, square):
    """exp(−2u), from which sigmoid(2u) = 1 / (1 + exp(−2u)); at most exp(80), which is still finite."""
    u = x * (SCALE + CUBIC * square)
    return exp(float32(80) if u < float32(-80) else -u)


@inlined
def _gelu(y, x):
    for i in range(x.size):
        y[i] = x[i] / (float32(1) + _falling(x[i], x[i] * x[i]))


@inlined
def _gelu_backward(dx, dy, x):
    """s and its slope share a factor s, taken out: for negative x the two nearly cancel."""
    for i in range(x.size):
        square = x[i] * x[i]
        e = _falling(x[i], square)
        s = float32(1) / (float32(1) + e)
        dx[i] = dy[i] * s * (float32(1) + x[i] * (e * s) * (SCALE + float32(3) * CUBIC * square))


GELU, GELU_BACKWARD = Kernel(gelu), Kernel(gelu_backward)
