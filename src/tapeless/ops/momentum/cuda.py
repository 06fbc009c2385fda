"""Momentum on the GPU: one pass over the arena."""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers
from tapeless.kernels.cuda.sections import cut, full_and_rounded, piece, step_to, sum_of_squares
from tapeless.kernels.native import Native


def forward(weights, m, master, step, moved, norms, gradients, scale, finite, lr, momentum, sections) -> list[Native]:
    pieces = cut(weights, sections)
    squares = pieces.squares(moved, norms)
    arguments = (*full_and_rounded(weights, master), m, *squares, gradients, scale, finite, lr, pieces.pieces, momentum)
    return [
        launch(_momentum, len(pieces), *arguments, **pieces.options),
        partial(step.add_, finite),
        pieces.roots(moved, squares[0]),
        pieces.roots(norms, squares[1]),  # (3)
    ]


@triton.jit
def _momentum(
    WEIGHTS,
    ROUNDED,
    M,
    MOVED,
    NORMS,
    GRADIENTS,
    SCALE,
    FINITE,
    LR,
    PIECES,
    momentum,
    GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start, stop = piece(PIECES, GRAIN)
    at = start + tl.arange(0, BLOCK)
    changes = at < tl.where(tl.load(FINITE) != 0, stop, start)
    w = numbers(WEIGHTS + at, at < stop)
    m = momentum * numbers(M + at, changes) + tl.load(SCALE).to(tl.float32) * numbers(GRADIENTS + at, changes)  # (1)
    change = tl.load(LR).to(tl.float32) * m
    tl.store(M + at, m, mask=changes)
    step_to(WEIGHTS, ROUNDED, at, w - change, changes)  # (2)
    sum_of_squares(MOVED, change, tl.program_id(0))
    sum_of_squares(NORMS, w, tl.program_id(0))
