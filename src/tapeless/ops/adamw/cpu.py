"""AdamW on the CPU: one pass over the arena, cut where a section begins and where the decay changes."""

from __future__ import annotations

from math import sqrt

from numba import float32, float64, prange

from tapeless.kernels.cpu import Kernel, fused, inlined, plus
from tapeless.kernels.native import Native
from tapeless.kernels.pieces import inside
from tapeless.ops.adamw.scratch import edges_of
from tapeless.ops.update_cpu import RUN, cut, roots, round_into, square_sum, stepped


def forward(
    weights,
    m,
    v,
    master,
    step,
    moved,
    norms,
    gradients,
    scale,
    finite,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    decayed,
    sections,
    scratch,
) -> list[Native]:
    pieces, firsts = cut(weights.size, sections, *edges_of(decayed))
    full, working = stepped(weights, master)
    written, read = (full, m, v, step, moved, norms), (gradients, scale, finite, lr)
    decays = inside(pieces, decayed)
    rest = (beta1, beta2, eps, decay, pieces, firsts, decays, *scratch, working)
    return [ADAMW.bind(weights.size, *written, *read, *rest)]


def adamw(
    weights,
    m,
    v,
    step,
    moved,
    norms,
    gradients,
    scale,
    finite,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    pieces,
    firsts,
    decays,
    squares,
    working,
):
    step[0] += finite[0]
    rate = float32(lr[0] / (1.0 - beta1 ** step[0]))
    root = float32(1.0 / sqrt(1.0 - beta2 ** step[0]))
    shrink = float32(lr[0] * decay)
    for piece in prange(pieces.shape[0]):
        a, b = pieces[piece, 0], pieces[piece, 1]
        if finite[0]:
            squares[0, piece], squares[1, piece] = _adamw(
                weights[a:b],
                m[a:b],
                v[a:b],
                gradients[a:b],
                float32(scale[0]),
                float32(beta2),
                float32(1.0 - beta1),
                float32(1.0 - beta2),
                shrink if decays[piece] else float32(0),
                rate,
                root,
                float32(eps),
            )
            if working is not None:
                round_into(working[a:b], weights[a:b])
        else:
            squares[0, piece], squares[1, piece] = 0.0, square_sum(weights[a:b])
    roots(moved, squares[0], firsts)
    roots(norms, squares[1], firsts)


@inlined
def _adamw(w, m, v, g, scale, keep2, new1, new2, shrink, rate, root, eps):
    """Σ change² and Σ w²."""
    change, size = 0.0, 0.0
    for a in range(0, w.size, RUN):
        b = a + RUN
        near, here = _run(w[a:b], m[a:b], v[a:b], g[a:b], scale, keep2, new1, new2, shrink, rate, root, eps)
        change += near
        size += here
    return change, size


@inlined
def _run(w, m, v, g, scale, keep2, new1, new2, shrink, rate, root, eps):
    changes, sizes = float32(0), float32(0)
    for i in range(w.size):
        gradient = scale * g[i]
        mean = m[i] + new1 * (gradient - m[i])
        size = fused(keep2, v[i], new2 * gradient * gradient)
        m[i], v[i] = mean, size
        away = rate * mean / (sqrt(size) * root + eps)
        change = shrink * w[i] + away
        changes = plus(changes, change * change)
        sizes = plus(sizes, w[i] * w[i])
        w[i] = fused(-shrink, w[i], w[i]) - away
    return float64(changes), float64(sizes)


ADAMW = Kernel(adamw)
