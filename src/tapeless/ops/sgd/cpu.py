"""SGD on the CPU: one pass over the arena."""

from __future__ import annotations

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, inlined, plus
from tapeless.kernels.native import Native
from tapeless.ops.update_cpu import RUN, cut, roots, round_into, square_sum, stepped


def forward(weights, master, step, moved, norms, gradients, scale, finite, lr, sections, scratch) -> list[Native]:
    pieces, firsts = cut(weights.size, sections)
    full, working = stepped(weights, master)
    written, read = (full, step, moved, norms), (gradients, scale, finite, lr)
    return [SGD.bind(weights.size, *written, *read, pieces, firsts, *scratch, working)]


def sgd(weights, step, moved, norms, gradients, scale, finite, lr, pieces, firsts, squares, working):
    rate = float32(lr[0] * scale[0])
    for piece in prange(pieces.shape[0]):
        a, b = pieces[piece, 0], pieces[piece, 1]
        if finite[0]:
            squares[0, piece], squares[1, piece] = _sgd(weights[a:b], gradients[a:b], rate)
            if working is not None:
                round_into(working[a:b], weights[a:b])
        else:
            squares[0, piece], squares[1, piece] = 0.0, square_sum(weights[a:b])
    step[0] += finite[0]
    roots(moved, squares[0], firsts)
    roots(norms, squares[1], firsts)


@inlined
def _sgd(w, g, rate):
    """Σ (rate · g)² and Σ w²."""
    change, size = 0.0, 0.0
    for start in range(0, w.size, RUN):
        near, here = _run(w[start : start + RUN], g[start : start + RUN], rate)
        change += near
        size += here
    return change * float64(rate) ** 2, size


@inlined
def _run(w, g, rate):
    change, size = float32(0), float32(0)
    for i in range(w.size):
        change = plus(change, g[i] * g[i])
        size = plus(size, w[i] * w[i])
        w[i] -= rate * g[i]
    return float64(change), float64(size)


SGD = Kernel(sgd)
