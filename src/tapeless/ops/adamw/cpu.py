"""AdamW on the CPU: one pass over the arena, cut where the decay changes."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba import float32, prange

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.vector import inlined
from tapeless.kernels.native import Native

BLOCK = 65536


def forward(weights, m, v, master, gradients, scale, lr, step, beta1, beta2, eps, decay, decayed) -> list[Native]:
    pieces = _pieces(weights.size, decayed)
    return [ADAMW.bind(weights.size, weights, m, v, gradients, scale, lr, step, beta1, beta2, eps, decay, pieces)]


def _pieces(size, decayed):
    """(start, stop, decayed or not), in order, each at most a block long."""
    edges = sorted({size, *(edge for span in decayed for edge in span), *range(0, size, BLOCK)})
    starts = np.array(edges[:-1])
    inside = np.zeros(len(starts), bool)
    for start, stop in decayed:
        inside |= (starts >= start) & (starts < stop)
    return np.stack([starts, np.array(edges[1:]), inside], axis=1).astype(np.int64)


def adamw(weights, m, v, gradients, scale, lr, step, beta1, beta2, eps, decay, pieces):
    rate = float32(lr[0] / (1.0 - beta1 ** step[0]))
    root = float32(1.0 / sqrt(1.0 - beta2 ** step[0]))
    shrink = float32(lr[0] * decay)
    for piece in prange(pieces.shape[0]):
        a, b = pieces[piece, 0], pieces[piece, 1]
        _adamw(
            weights[a:b], m[a:b], v[a:b], gradients[a:b], float32(scale[0]), float32(beta2),
            float32(1.0 - beta1), float32(1.0 - beta2), shrink if pieces[piece, 2] else float32(0),
            rate, root, float32(eps),
        )  # fmt: skip


@inlined
def _adamw(w, m, v, g, scale, keep2, new1, new2, shrink, rate, root, eps):
    for i in range(w.size):
        gradient = scale * g[i]
        mean = m[i] + new1 * (gradient - m[i])
        size = keep2 * v[i] + new2 * gradient * gradient
        m[i], v[i] = mean, size
        w[i] = w[i] - shrink * w[i] - rate * mean / (sqrt(size) * root + eps)


ADAMW = Kernel(adamw)
