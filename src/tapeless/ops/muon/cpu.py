"""Muon on the CPU: one pass over what AdamW steps, then each matrix by itself, with products of ours or of the BLAS."""

from __future__ import annotations

from contextlib import nullcontext
from math import sqrt

import numpy as np
from numba import float32, float64, prange

from tapeless.kernels import pieces
from tapeless.kernels.cpu import Kernel, fused, gemm, inlined, plus, strided, using_gemm_library
from tapeless.kernels.native import Native
from tapeless.ops.adamw.cpu import _adamw
from tapeless.ops.adamw.scratch import edges_of
from tapeless.ops.muon.reference import COEFFICIENTS, ROUNDS, SHARE, SMALLEST, each, rest_of
from tapeless.ops.update_cpu import cut, roots, round_into, square_sum, stepped

LINEAR, CUBIC, QUINTIC = COEFFICIENTS
SMALL = 1024  # elements of a matrix whose products are our own: MKL's round twice as far there on some processors


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
    momentum,
    beta1,
    beta2,
    eps,
    decay,
    decayed,
    matrices,
    sections,
    scratch,
) -> list[Native]:
    squares, by_row, *room = scratch
    full, working = stepped(weights, master)
    division = Division(weights.size, decayed, matrices, sections)
    natives: list[Native] = [
        REST.bind(
            v.size,
            full,
            m,
            v,
            step,
            gradients,
            scale,
            finite,
            lr,
            beta1,
            beta2,
            eps,
            decay,
            division.pieces,
            division.places,
            division.decays,
            squares,
            division.of_pieces,
            working,
        )
    ]
    for (start, rows, length, columns), part in zip(each(matrices), division.of_matrices.tolist(), strict=True):
        weight, mean, gradient, *rounded = (
            of[start : start + rows * length].reshape(rows, length)[:, columns]
            for of in (full, m, gradients, working)
            if of is not None
        )
        shrinks = decay if any(first <= start < stop for first, stop in decayed) else 0.0
        x, y, a, b = _cut_to(weight.shape, room)
        natives.append(MEAN.bind(x.size, *strided(mean, gradient), x, by_row, scale, finite, 1.0 - momentum, momentum))
        for _ in range(ROUNDS):
            natives += _round(y, x, a, b)
            x, y = y, x
        natives.append(
            STEP.bind(
                x.size,
                *strided(weight),
                x,
                by_row,
                squares,
                part,
                lr,
                shrinks,
                SHARE * sqrt(max(x.shape)),
                finite,
                *strided(*(rounded or [None])),
            )
        )
    return [*natives, NORMS.bind(0, moved, norms, squares, division.firsts)]


class Division:
    """The memory in parts, each of which lies in one section: pieces that AdamW steps, and matrices. The sum of squares
    of a section is that of its parts, in order."""

    def __init__(self, size, decayed, matrices, sections):
        spans = rest_of(matrices, size)
        edges = [edge for start, stop in spans for edge in (start, stop)]
        everything, _ = cut(size, sections, *edges_of(decayed), *edges)
        self.pieces = everything[pieces.inside(everything, spans)]
        lengths = self.pieces[:, 1] - self.pieces[:, 0]
        self.places = np.cumsum(lengths) - lengths  # of a piece in v
        self.decays = pieces.inside(self.pieces, decayed)
        starts = np.array([*self.pieces[:, 0], *(start + columns.start for start, _, _, columns in each(matrices))])
        order = np.argsort(starts, kind="stable")
        ranks = np.empty(len(starts), np.int64)
        ranks[order] = np.arange(len(starts))
        self.of_pieces, self.of_matrices = ranks[: len(self.pieces)].copy(), ranks[len(self.pieces) :]
        self.firsts = np.searchsorted(starts[order], (*sections, size))


def _cut_to(shape, room):
    rows, columns = shape
    side = min(shape)
    sizes = ((rows, columns), (rows, columns), (side, side), (side, side))
    return [array[: height * width].reshape(height, width) for array, (height, width) in zip(room, sizes, strict=True)]


def _round(y, x, a, b) -> list[Native]:
    """y = (a I + b A + c A²) x, or of a tall x from the right: the smaller A is what all is multiplied with."""
    tall = x.shape[0] > x.shape[1]
    with using_gemm_library("own") if x.size <= SMALL else nullcontext():
        return [
            gemm(a, x, x, transpose_a=tall, transpose_b=not tall),
            gemm(b, a, a),
            POLYNOMIAL.bind(a.size, b, a),
            gemm(y, x, b) if tall else gemm(y, b, x),
        ]


def adamw_rest(
    weights,
    m,
    v,
    step,
    gradients,
    scale,
    finite,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    pieces,
    places,
    decays,
    squares,
    parts,
    working,
):
    step[0] += finite[0]
    rate = float32(lr[0] / (1.0 - beta1 ** step[0]))
    root = float32(1.0 / sqrt(1.0 - beta2 ** step[0]))
    shrink = float32(lr[0] * decay)
    for piece in prange(pieces.shape[0]):
        a, b, at, part = pieces[piece, 0], pieces[piece, 1], places[piece], parts[piece]
        if finite[0]:
            squares[0, part], squares[1, part] = _adamw(
                weights[a:b],
                m[a:b],
                v[at : at + b - a],
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
            squares[0, part], squares[1, part] = 0.0, square_sum(weights[a:b])


def mean_step(m, m_apart, gradient, g_apart, x, by_row, scale, finite, new, keep):
    """(1) and (2). Where nothing may be changed x is 0, whatever the gradient."""
    rows, width = x.shape
    for r in prange(rows):
        if finite[0]:
            a, b = r * m_apart, r * g_apart
            by_row[0, r] = _mean(m[a : a + width], gradient[b : b + width], x[r], float32(scale[0]), new, keep)
        else:
            x[r] = float32(0)
            by_row[0, r] = 0.0
    total = 0.0
    for r in range(rows):
        total += by_row[0, r]
    factor = 1.0 / max(sqrt(total), SMALLEST)
    for r in prange(rows):
        row = x[r]
        for i in range(width):
            row[i] = float32(row[i] * factor)


@inlined
def _mean(m, g, x, scale, new, keep):
    """Σ x²"""
    size, part, kept = 0.0, float32(new), float32(keep)
    for i in range(x.size):
        gradient = scale * g[i]
        mean = m[i] + part * (gradient - m[i])
        m[i] = mean
        ahead = fused(kept, mean, part * gradient)
        x[i] = ahead
        size = plus(size, float64(ahead) * float64(ahead))
    return size


def polynomial(b, a):
    """a I + b A + c A², where A² is."""
    for r in prange(a.shape[0]):
        row, other = b[r], a[r]
        for i in range(row.size):
            row[i] = float32(CUBIC) * other[i] + float32(QUINTIC) * row[i]
        row[r] += float32(LINEAR)


def matrix_step(weight, weight_apart, x, by_row, squares, part, lr, decay, length, finite, working, working_apart):
    rows, width = x.shape
    shrink, rate = float32(lr[0] * decay), float32(lr[0] * length)
    for r in prange(rows):
        w = weight[r * weight_apart : r * weight_apart + width]
        if finite[0]:
            by_row[0, r], by_row[1, r] = _matrix_row(w, x[r], shrink, rate)
            if working is not None:
                round_into(working[r * working_apart : r * working_apart + width], w)
        else:
            by_row[0, r], by_row[1, r] = 0.0, square_sum(w)
    squares[0, part], squares[1, part] = 0.0, 0.0
    for r in range(rows):
        squares[0, part] += by_row[0, r]
        squares[1, part] += by_row[1, r]


@inlined
def _matrix_row(w, x, shrink, rate):
    """Σ change² and Σ w²."""
    changes, sizes = 0.0, 0.0
    for i in range(w.size):
        away = rate * x[i]
        change = float64(shrink * w[i] + away)
        changes = plus(changes, change * change)
        sizes = plus(sizes, float64(w[i]) * float64(w[i]))
        w[i] = fused(-shrink, w[i], w[i]) - away
    return changes, sizes


def norms_by_section(moved, norms, squares, firsts):
    roots(moved, squares[0], firsts)
    roots(norms, squares[1], firsts)


REST, MEAN, POLYNOMIAL = Kernel(adamw_rest), Kernel(mean_step), Kernel(polynomial)
STEP, NORMS = Kernel(matrix_step), Kernel(norms_by_section)
