"""Muon on the GPU: one pass over what AdamW steps, then each matrix by itself, of which the products are cuBLAS's, in
the type of the working weights. The sum of squares of a section is that of its parts, in order."""

from __future__ import annotations

from functools import partial
from math import log, sqrt

import numpy as np
import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, constant, launch, numbers, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sections import BLOCK, full_and_rounded, roots, step_to, sum_of_squares
from tapeless.kernels.native import Native
from tapeless.ops.adamw.cuda import adam
from tapeless.ops.muon.reference import COEFFICIENTS, ROUNDS, SHARE, SMALLEST, each, rest_of

LINEAR, CUBIC, QUINTIC = COEFFICIENTS
ELEMENTS = 4096  # of a matrix, at most, in one program: some whole rows, and of a longer one some columns at a time
PARTS = 1024  # whose sums are added at once


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
) -> list[Native]:
    full, rounded = full_and_rounded(weights, master)
    parts = Parts(weights, decayed, matrices, sections)
    squares = scratch(weights, 2, parts.count, dtype=torch.float64)
    betas = (log(beta1), log(beta2), 1 - beta1, beta2, 1 - beta2, eps, decay)
    told = (squares[0], squares[1], gradients, scale, finite, lr, step, parts.pieces)
    runs: list[Native] = [partial(step.add_, finite)]
    if len(parts.pieces):
        rest = (full, rounded, m, v, *told)
        runs.append(launch(_rest, len(parts.pieces), *rest, *betas, BLOCK=BLOCK, num_warps=8))
    room = _room(weights, matrices)
    for (start, rows, length, columns), first in zip(each(matrices), parts.of_matrices, strict=True):
        w, mean, gradient = (
            of[start : start + rows * length].view(rows, length)[:, columns] for of in (full, m, gradients)
        )
        r = None if rounded is None else rounded[start : start + rows * length].view(rows, length)[:, columns]
        shape, tiles = w.shape, _tiles(*w.shape)
        raw, x, y, a, b = _cut_to(shape, room[:-1])
        programs, sums = blocks(rows, tiles["HIGH"]), room[-1]
        given = (raw, sums, mean, gradient, length, *shape, scale, finite, 1 - momentum, momentum)
        runs.append(launch(_mean, programs, *given, **tiles))
        arguments = (x, raw, sums, programs, raw.numel(), SMALLEST)
        runs.append(launch(_normed, blocks(raw.numel(), BLOCK), *arguments, PARTS=PARTS, BLOCK=BLOCK))
        for _ in range(ROUNDS):
            runs += _round(y, x, a, b)
            x, y = y, x
        shrinks = decay if _within(start, decayed) else 0.0
        given = (w, r, length, x, squares[0, first:], squares[1, first:], *shape, lr, finite)
        runs.append(launch(_step, programs, *given, shrinks, SHARE * sqrt(max(shape)), **tiles))
    ends = [roots(of, squares[number], parts.firsts) for number, of in enumerate((moved, norms))]
    return [*runs, *ends]


class Parts:
    """The memory in parts, each of which lies in one section and has its own sum: pieces that AdamW steps, and some
    rows of a matrix. `pieces`: (start, stop, decays, place in v, number of the part)."""

    def __init__(self, weights, decayed, matrices, sections):
        size, spans = weights.numel(), rest_of(matrices, weights.numel())
        edges = {edge for span in (*spans, *decayed) for edge in span} | set(sections) | set(range(0, size, BLOCK))
        starts = sorted(edge for edge in edges if edge < size)
        pieces = list(zip(starts, (*starts[1:], size), strict=True))
        pieces = [piece for piece in pieces if _within(piece[0], spans)]
        places = [(start, 1) for start, _ in pieces]  # where parts begin, and how many
        for start, rows, _, columns in each(matrices):
            high = _tiles(rows, columns.stop - columns.start)["HIGH"]
            places.append((start + columns.start, blocks(rows, high)))
        order = sorted(range(len(places)), key=lambda number: places[number][0])
        numbers_of = np.cumsum([0, *(places[number][1] for number in order)])
        first = {number: int(numbers_of[at]) for at, number in enumerate(order)}
        self.count = int(numbers_of[-1])
        lengths = np.cumsum([0, *(stop - start for start, stop in pieces)])
        rows_of = [
            (start, stop, _within(start, decayed), int(lengths[number]), first[number])
            for number, (start, stop) in enumerate(pieces)
        ]
        self.pieces = constant(weights, np.array(rows_of, np.int64).reshape(-1, 5))
        self.of_matrices = [first[number] for number in range(len(pieces), len(places))]
        begun = np.searchsorted([places[number][0] for number in order], (*sections, size))
        self.firsts = constant(weights, numbers_of[begun].astype(np.int64))


def _within(start, spans):
    return any(low <= start < high for low, high in spans)


def _tiles(rows, columns):
    wide = min(width(columns), ELEMENTS)
    high = max(1, min(width(rows), ELEMENTS // wide))
    return {"HIGH": high, "WIDE": wide, "num_warps": 4}


def _room(like, matrices):
    """For the largest matrix once in float32 and twice in the working type, for its products with itself, and for sums
    of squares."""
    shapes = [(rows, columns.stop - columns.start) for _, rows, _, columns in each(matrices)]
    largest, side = max((r * c for r, c in shapes), default=0), max((min(shape) for shape in shapes), default=0) ** 2
    most = max((blocks(r, _tiles(r, c)["HIGH"]) for r, c in shapes), default=0)
    narrow = [scratch(like, size, dtype=like.dtype) for size in (largest, largest, side, side)]
    return [scratch(like, largest), *narrow, scratch(like, most, dtype=torch.float64)]


def _cut_to(shape, room):
    side = min(shape)
    sizes = (shape, shape, shape, (side, side), (side, side))
    return [array[: high * wide].view(high, wide) for array, (high, wide) in zip(room, sizes, strict=True)]


def _round(y, x, a, b) -> list[Native]:
    """y = a x + (b A + c A²) x, or of a tall x from the right: the smaller A is what all is multiplied with."""
    tall = x.shape[0] > x.shape[1]
    return [
        partial(torch.mm, x.T if tall else x, x if tall else x.T, out=a),
        partial(torch.addmm, a, a, a, beta=CUBIC, alpha=QUINTIC, out=b),
        partial(torch.addmm, x, *((x, b) if tall else (b, x)), beta=LINEAR, out=y),
    ]


@triton.jit
def _rest(
    WEIGHTS,
    ROUNDED,
    M,
    V,
    MOVED,
    NORMS,
    GRADIENTS,
    SCALE,
    FINITE,
    LR,
    STEP,
    PIECES,
    log_beta1,
    log_beta2,
    new1,
    keep2,
    new2,
    eps,
    decay,
    BLOCK: tl.constexpr,
):
    piece = PIECES + 5 * tl.program_id(0)
    start, stop, part = tl.load(piece), tl.load(piece + 1), tl.load(piece + 4)
    at = start + tl.arange(0, BLOCK)
    changes = at < tl.where(tl.load(FINITE) != 0, stop, start)
    of_v = V + (tl.load(piece + 3) - start)
    g = tl.load(SCALE).to(tl.float32) * numbers(GRADIENTS + at, changes)
    m, v, w = numbers(M + at, changes), numbers(of_v + at, changes), numbers(WEIGHTS + at, at < stop)
    betas = (log_beta1, log_beta2, new1, keep2, new2, eps)
    m, v, change = adam(m, v, g, tl.load(STEP), tl.load(LR), betas)
    change = tl.where(changes, (tl.load(LR) * decay).to(tl.float32) * tl.load(piece + 2) * w + change, 0.0)
    tl.store(M + at, m, mask=changes)
    tl.store(of_v + at, v, mask=changes)
    step_to(WEIGHTS, ROUNDED, at, w - change, changes)
    sum_of_squares(MOVED, change, part)
    sum_of_squares(NORMS, w, part)


@triton.jit
def _mean(X, SUMS, M, G, length, R, C, SCALE, FINITE, new, keep, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """(1). Where nothing may be changed x is 0, whatever the gradient."""
    r = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    changing, scale = r < tl.where(tl.load(FINITE) != 0, R, 0), tl.load(SCALE).to(tl.float32)
    total = tl.zeros((HIGH, WIDE), tl.float64)
    for first in range(0, C, WIDE):
        c = first + tl.arange(0, WIDE)
        inside = (r < R)[:, None] & (c < C)[None, :]
        at, changes = r[:, None].to(tl.int64) * length + c[None, :], changing[:, None] & (c < C)[None, :]
        g, m = scale * numbers(G + at, changes), numbers(M + at, changes)
        m += new * (g - m)
        tl.store(M + at, m, mask=changes)
        x = tl.where(changes, keep * m + new * g, 0.0)
        tl.store(X + r[:, None].to(tl.int64) * C + c[None, :], x, mask=inside)
        total += x.to(tl.float64) * x.to(tl.float64)
    tl.store(SUMS + tl.program_id(0), tl.sum(tl.sum(total, 1), 0))


@triton.jit
def _normed(Y, X, SUMS, P, N, smallest, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """(2)"""
    total = tl.zeros((PARTS,), tl.float64)
    for first in range(0, P, PARTS):
        p = first + tl.arange(0, PARTS)
        total += tl.load(SUMS + p, mask=p < P, other=0.0)
    factor = (1.0 / tl.maximum(tl.sqrt(tl.sum(total, 0)), smallest)).to(tl.float32)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, numbers(X + at, at < N) * factor, mask=at < N)


@triton.jit
def _step(
    WEIGHTS, ROUNDED, length, X, MOVED, NORMS, R, C, LR, FINITE, decay, share, HIGH: tl.constexpr, WIDE: tl.constexpr
):
    """(4)"""
    r = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    changing, lr = r < tl.where(tl.load(FINITE) != 0, R, 0), tl.load(LR)
    shrink, rate = (lr * decay).to(tl.float32), (lr * share).to(tl.float32)
    moves, sizes = tl.zeros((HIGH, WIDE), tl.float64), tl.zeros((HIGH, WIDE), tl.float64)
    for first in range(0, C, WIDE):
        c = first + tl.arange(0, WIDE)
        inside = (r < R)[:, None] & (c < C)[None, :]
        at, changes = r[:, None].to(tl.int64) * length + c[None, :], changing[:, None] & (c < C)[None, :]
        w, x = numbers(WEIGHTS + at, inside), numbers(X + r[:, None].to(tl.int64) * C + c[None, :], inside)
        change = tl.where(changes, shrink * w + rate * x, 0.0)
        step_to(WEIGHTS, ROUNDED, at, w - change, changes)
        moves += change.to(tl.float64) * change.to(tl.float64)
        sizes += w.to(tl.float64) * w.to(tl.float64)
    tl.store(MOVED + tl.program_id(0), tl.sum(tl.sum(moves, 1), 0))
    tl.store(NORMS + tl.program_id(0), tl.sum(tl.sum(sizes, 1), 0))
