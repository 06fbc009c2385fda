"""SGD on the CPU: one pass over the arena."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.division import blocks
from tapeless.kernels.cpu.vector import inlined
from tapeless.kernels.native import Native

BLOCK = 65536


def forward(weights, master, gradients, scale, lr) -> list[Native]:
    return [SGD.bind(weights.size, weights, gradients, scale, lr)]


def sgd(weights, gradients, scale, lr):
    for block in prange(blocks(weights.size, BLOCK)):
        a, b = block * BLOCK, block * BLOCK + BLOCK
        _sgd(weights[a:b], gradients[a:b], float32(lr[0] * scale[0]))


@inlined
def _sgd(w, g, rate):
    for i in range(w.size):
        w[i] -= rate * g[i]


SGD = Kernel(sgd)
