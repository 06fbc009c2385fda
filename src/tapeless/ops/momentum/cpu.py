"""Momentum on the CPU: one pass over the arena."""

from __future__ import annotations

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, inlined, plus
from tapeless.kernels.native import Native
from tapeless.ops.update_cpu import RUN, cut, roots, round_into, square_sum, stepped


def forward(
    weights, m, master, step, moved, norms, gradients, scale, finite, lr, momentum, sections, scratch
) -> list[Native]:
    pieces, firsts = cut(weights.size, sections)
    full, working = stepped(weights, master)
    written, read = (full, m, step, moved, norms), (gradients, scale, finite, lr)
    return [MOMENTUM.bind(weights.size, *written, *read, momentum, pieces, firsts, *scratch, working)]


def momentum_step(
    weights, m, step, moved, norms, gradients, scale, finite, lr, momentum, pieces, firsts, squares, working
):
    for piece in prange(pieces.shape[0]):
        a, b = pieces[piece, 0], pieces[piece, 1]
        if finite[0]:
            squares[0, piece], squares[1, piece] = _momentum(
                weights[a:b], m[a:b], gradients[a:b], float32(scale[0]), float32(lr[0]), float32(momentum)
            )
            if working is not None:
                round_into(working[a:b], weights[a:b])
        else:
            squares[0, piece], squares[1, piece] = 0.0, square_sum(weights[a:b])
    step[0] += finite[0]
    roots(moved, squares[0], firsts)
    roots(norms, squares[1], firsts)


@inlined
def _momentum(w, m, g, scale, lr, momentum):
    """Σ (lr · m)² and Σ w²."""
    change, size = 0.0, 0.0
    for a in range(0, w.size, RUN):
        near, here = _run(w[a : a + RUN], m[a : a + RUN], g[a : a + RUN], scale, lr, momentum)
        change += near
        size += here
    return change * float64(lr) ** 2, size


@inlined
def _run(w, m, g, scale, lr, momentum):
    change, size = float32(0), float32(0)
    for i in range(w.size):
        moved = momentum * m[i] + scale * g[i]
        m[i] = moved
        change = plus(change, moved * moved)
        size = plus(size, w[i] * w[i])
        w[i] -= lr * moved
    return float64(change), float64(size)


MOMENTUM = Kernel(momentum_step)
