"""Global norm on the GPU, in float64: by pieces, from them by sections, from those the whole."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, width
from tapeless.kernels.cuda.sections import cut, piece, sum_of_squares
from tapeless.kernels.native import Native


def forward(norm, norms, gradients, sections) -> list[Native]:
    pieces = cut(gradients, sections)
    (squares,) = pieces.squares(norms)
    return [
        launch(_squares, len(pieces), squares, gradients, pieces.pieces, **pieces.options),
        pieces.roots(norms, squares),  # (2)
        launch(_whole, 1, norm, norms, len(norms), WIDTH=width(len(norms)), num_warps=1),
    ]


@triton.jit
def _squares(SQUARES, GRADIENTS, PIECES, GRAIN: tl.constexpr, BLOCK: tl.constexpr):
    start, stop = piece(PIECES, GRAIN)
    at = start + tl.arange(0, BLOCK)
    sum_of_squares(SQUARES, tl.load(GRADIENTS + at, mask=at < stop, other=0.0), tl.program_id(0))


@triton.jit
def _whole(NORM, NORMS, L, WIDTH: tl.constexpr):
    norms = tl.load(NORMS + tl.arange(0, WIDTH), mask=tl.arange(0, WIDTH) < L, other=0.0)
    tl.store(NORM, tl.sqrt(tl.sum(norms * norms, 0)))  # (1)
