"""ReLU on the CPU."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, block_count, flat, inlined
from tapeless.kernels.native import Native

BLOCK = 16384


def forward(y, x) -> list[Native]:
    return [RELU.bind(x.size, *flat(y, x))]


def backward(dx, dy, x) -> list[Native]:
    return [RELU_BACKWARD.bind(x.size, *flat(dx, dy, x))]


def relu(y, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _pass_where_positive(y[at : at + BLOCK], x[at : at + BLOCK], x[at : at + BLOCK])


def relu_backward(dx, dy, x):
    for block in prange(block_count(x.size, BLOCK)):
        at = block * BLOCK
        _pass_where_positive(dx[at : at + BLOCK], dy[at : at + BLOCK], x[at : at + BLOCK])


@inlined
def _pass_where_positive(out, values, x):
    """NaN is not ≤ 0 and passes, so that it is noticed."""
    for i in range(x.size):
        out[i] = float32(0) if x[i] <= 0 else values[i]


RELU, RELU_BACKWARD = Kernel(relu), Kernel(relu_backward)
