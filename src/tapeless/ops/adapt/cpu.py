"""Adapt on the CPU: the products are the BLAS's, which adds where the call adds. The scale is put on what has as few
columns as the rank, never on a whole result."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, gemm, strided
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, low, weight, scale, add=NONE, scratch=()) -> list[Native]:
    scaled, *room = scratch
    return [_scaled(scaled, low, scale), gemm(y, scaled, weight, beta=float("y" in add), scratch=room)]


def backward(dlow, dweight, dy, low, weight, scale, add=NONE, scratch=()) -> list[Native]:
    """Where dlow is added to, dy is multiplied into the scratch first: the scale is of the product alone."""
    scaled, *room = scratch
    natives: list[Native] = []
    if dweight is not None:
        adds = float("dweight" in add)
        natives += [_scaled(scaled, low, scale), gemm(dweight, scaled, dy, True, beta=adds, scratch=room)]
    if dlow is not None:
        natives.append(gemm(scaled, dy, weight, transpose_b=True, scratch=room))
        natives.append(_scaled(dlow, scaled, scale, "dlow" in add))
    return natives


def _scaled(y, x, scale, add=False) -> Native:
    return SCALED.bind(y.size, *y.shape, *strided(y, x), float32(scale), add)


def scaled(rows, width, y, y_step, x, x_step, scale, add):
    """y (+)= scale · x, of rows that may be columns of something wider."""
    for r in prange(rows):
        a, b = r * y_step, r * x_step
        out, row = y[a : a + width], x[b : b + width]
        if add:
            for i in range(width):
                out[i] += scale * row[i]
        else:
            for i in range(width):
                out[i] = scale * row[i]


SCALED = Kernel(scaled)
