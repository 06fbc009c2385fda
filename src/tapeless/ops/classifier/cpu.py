"""The classifier on the CPU: product, softmax and gradient of one chunk in place, then the two products back.

For a large vocabulary the chunk is held transposed, V×K: one column per row of x. The product weight @ xᵀ then
writes whole cache lines (a row of V scores starts at odd addresses when V is odd), and the passes over it run along
K, where neighbours belong to different rows and nothing has to be summed across vector lanes.
"""

from __future__ import annotations

from math import log

import numpy as np
from numba import float32, float64, prange

from tapeless.kernels.cpu import (
    Kernel,
    block_count,
    exp,
    gemm,
    inlined,
    larger,
    largest,
    part_count,
    plus,
    upcast,
)
from tapeless.kernels.native import Native
from tapeless.ops.classifier.scratch import BANDS, TRANSPOSED_FROM
from tapeless.ops.contract import NONE

DEPTH = 32  # words whose exponentials are summed in float32 before they join the float64 sum
WORDS = 64  # of a block of the gradient


def forward(loss, logits, x, weight, targets, count, class_weights=None, *, scratch) -> list[Native]:
    natives: list[Native] = []
    for rows, first in _chunks(len(x), len(logits)):
        given = (targets[rows], count, class_weights)
        natives += _scores_and_loss(loss, logits, x[rows], weight, given, first, scratch, gradient=False)[1]
    return natives


def backward(
    loss, dx, dweight, logits, x, weight, targets, count, class_weights=None, add=NONE, *, scratch
) -> list[Native]:
    natives: list[Native] = []
    for rows, first in _chunks(len(x), len(logits)):
        given = (targets[rows], count, class_weights)
        z, made = _scores_and_loss(loss, logits, x[rows], weight, given, first, scratch, gradient=True)
        transposed = len(weight) >= TRANSPOSED_FROM
        beta = float("dweight" in add or not first)
        natives, room = natives + made, scratch[-1:]
        if dx is not None:
            natives.append(gemm(dx[rows], z, weight, transpose_a=transposed, scratch=room, upcast=True))
        if dweight is not None:
            natives.append(gemm(dweight, z, x[rows], transpose_a=not transposed, beta=beta, scratch=room))
    return natives


def _chunks(rows, chunk):
    return [(slice(at, min(at + chunk, rows)), at == 0) for at in range(0, rows, chunk)]


def _scores_and_loss(loss, logits, x, weight, given, first, scratch, gradient):
    """The chunk as it will hold dz, and the native calls that fill it."""
    rows, vocab = len(x), len(weight)
    if vocab < TRANSPOSED_FROM:
        z = logits[:rows]
        arguments = (loss, scratch[0][:rows], z, *given, first, gradient)
        scores = gemm(z, x, weight, transpose_b=True, scratch=scratch[-1:], upcast=True)
        return z, [scores, BY_ROWS.bind(z.size, *arguments)]
    z = logits.reshape(-1, copy=False)[: rows * vocab].reshape(vocab, rows)
    bands = part_count(vocab, 256, BANDS)
    tops = scratch[0][: bands * 3 * rows].reshape(bands, 3, rows)
    totals = scratch[1][: bands * rows].reshape(bands, rows)
    shift, share = scratch[2][:rows], scratch[3][:rows]
    natives: list[Native] = [
        gemm(z, weight, x, transpose_b=True, scratch=scratch[-1:], upcast=True),
        BY_COLUMNS.bind(z.size, loss, shift, share, z, *given, first, tops, totals),
    ]
    if gradient:
        natives.append(COLUMN_GRADIENT.bind(z.size, z, shift, share, *given))
    return z, natives


@inlined
def _row_weight(target, class_weights):
    return 1.0 if class_weights is None else float64(class_weights[target])


def by_rows(loss, row_loss, z, targets, count, class_weights, first, gradient):
    """Adds the chunk's part to the loss and, where `gradient`, replaces the scores z by dz."""
    for r in prange(z.shape[0]):
        row, target = z[r], targets[r]
        row_loss[r] = 0.0
        if target < 0:
            if gradient:
                row[:] = float32(0)
        else:
            most, picked = largest(row), row[target]
            total = _exponentials(row, most, gradient)
            factor = _row_weight(target, class_weights)
            if gradient:
                _scale(row, float32(factor / (total * count[0])))
                row[target] -= float32(factor / count[0])
            row_loss[r] = factor * (log(total) + (float64(most) - float64(upcast(picked))))
    total = 0.0
    for r in range(z.shape[0]):
        total += row_loss[r]
    loss[0] = float32((0.0 if first else float64(loss[0])) + total / count[0])


@inlined
def _exponentials(row, most, keep):
    """Σ exp(row − most), in the row itself where they are kept."""
    total = float32(0)
    if keep:
        for i in range(row.size):
            e = exp(row[i] - most)
            row[i] = e
            total = plus(total, e)
    else:
        for i in range(row.size):
            total = plus(total, exp(row[i] - most))
    return float64(total)


@inlined
def _scale(row, factor):
    for i in range(row.size):
        row[i] *= factor


def by_columns(loss, shift, share, z, targets, count, class_weights, first, tops, totals):
    """The loss of this chunk, and in `shift` and `share` what makes exp(z − shift) · share w · softmax / count. One
    log-sum-exp for both would be off by as much as a large score is, and the gradient too.

    Each band of the vocabulary is gone down with a running maximum and sum per column.
    """
    vocab, width = z.shape
    bands = tops.shape[0]
    for band in prange(bands):
        low, high = vocab * band // bands, vocab * (band + 1) // bands
        most, total = tops[band, 0], totals[band]
        most[:] = float32(-np.inf)
        total[:] = 0.0
        for at in range(low, high, DEPTH):
            _absorb(z[at : min(high, at + DEPTH)], most, total, tops[band, 1], tops[band, 2])
    chunk_loss = 0.0
    for k in range(width):
        most = largest(tops[:, 0, k])
        shift[k], share[k] = most, float32(0)  # ignored rows have no gradient
        if targets[k] >= 0:
            total = 0.0
            for band in range(bands):
                total += totals[band, k] * float64(exp(tops[band, 0, k] - most))
            factor = _row_weight(targets[k], class_weights)
            chunk_loss += factor * (log(total) + (float64(most) - float64(upcast(z[targets[k], k]))))
            share[k] = float32(factor / (total * count[0]))
    loss[0] = float32((0.0 if first else float64(loss[0])) + chunk_loss / count[0])


@inlined
def _absorb(z, most, total, high, part):
    """Takes DEPTH more words into the running maximum `most` and the running sum `total` of every column."""
    width = most.size
    high[:] = most
    for v in range(z.shape[0]):
        row = z[v]
        for k in range(width):
            high[k] = larger(high[k], row[k])
    for k in range(width):
        total[k] *= float64(exp(most[k] - high[k]))
    part[:] = float32(0)
    for v in range(z.shape[0]):
        row = z[v]
        for k in range(width):
            part[k] += exp(row[k] - high[k])
    for k in range(width):
        total[k] += float64(part[k])
    most[:] = high


def column_gradient(z, shift, share, targets, count, class_weights):
    vocab, width = z.shape
    for block in prange(block_count(vocab, WORDS)):
        _softmax(z[block * WORDS : min(vocab, block * WORDS + WORDS)], shift, share)
    for k in range(width):
        if targets[k] >= 0:
            z[targets[k], k] -= float32(_row_weight(targets[k], class_weights) / count[0])


@inlined
def _softmax(z, shift, share):
    for v in range(z.shape[0]):
        row = z[v]
        for k in range(shift.size):
            row[k] = exp(row[k] - shift[k]) * share[k]


BY_ROWS, BY_COLUMNS, COLUMN_GRADIENT = Kernel(by_rows), Kernel(by_columns), Kernel(column_gradient)
