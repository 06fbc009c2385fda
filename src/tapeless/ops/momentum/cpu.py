"""Momentum on the CPU: one pass over the arena."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.division import blocks
from tapeless.kernels.cpu.vector import inlined
from tapeless.kernels.native import Native

BLOCK = 65536


def forward(weights, m, master, gradients, scale, lr, momentum) -> list[Native]:
    return [MOMENTUM.bind(weights.size, weights, m, gradients, scale, lr, momentum)]


def momentum_step(weights, m, gradients, scale, lr, momentum):
    for block in prange(blocks(weights.size, BLOCK)):
        a, b = block * BLOCK, block * BLOCK + BLOCK
        _momentum(weights[a:b], m[a:b], gradients[a:b], float32(scale[0]), float32(lr[0]), float32(momentum))


@inlined
def _momentum(w, m, g, scale, lr, momentum):
    for i in range(w.size):
        moved = momentum * m[i] + scale * g[i]
        m[i] = moved
        w[i] -= lr * moved


MOMENTUM = Kernel(momentum_step)
