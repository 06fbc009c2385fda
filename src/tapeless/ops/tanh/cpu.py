"""tanh on the CPU."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, block_count, exp, flat, inlined, upcast
from tapeless.kernels.native import Native

BLOCK = 16384


def forward(y, x) -> list[Native]:
    return [TANH.bind(x.size, *flat(y, x))]


def backward(dx, dy, x) -> list[Native]:
    return [TANH_BACKWARD.bind(x.size, *flat(dx, dy, x))]


def tanh(y, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _tanh(y[at : at + BLOCK], x[at : at + BLOCK])


def tanh_backward(dx, dy, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _tanh_backward(dx[at : at + BLOCK], dy[at : at + BLOCK], x[at : at + BLOCK])


@inlined
def _tanh_of(x):
    """Near zero a polynomial (the other form cancels there), elsewhere 1 − 2/(exp(2|x|) + 1) with x's sign."""
    size = abs(x)
    size = float32(10) if size > float32(10) else size
    far = float32(1) - float32(2) / (exp(size + size) + float32(1))
    far = -far if x < 0 else far
    z = x * x
    p = float32(-5.70498872745e-3)
    p = p * z + float32(2.06390887954e-2)
    p = p * z + float32(-5.37397155531e-2)
    p = p * z + float32(1.33314422036e-1)
    p = p * z + float32(-3.33332819422e-1)
    near = p * z * x + x
    return far if size > float32(0.625) else near


@inlined
def _tanh(y, x):
    for i in range(x.size):
        y[i] = _tanh_of(upcast(x[i]))


@inlined
def _tanh_backward(dx, dy, x):
    """1 − tanh² x = 4e / (1 + e)² with e = exp(−2|x|): nothing is subtracted, so digits stay where tanh is near 1."""
    for i in range(x.size):
        e = exp(float32(-2) * abs(upcast(x[i])))
        dx[i] = dy[i] * (float32(4) * e / ((float32(1) + e) * (float32(1) + e)))


TANH, TANH_BACKWARD = Kernel(tanh), Kernel(tanh_backward)
