"""Positions on the CPU."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, table, add=NONE) -> list[Native]:
    return [POSITIONS.bind(y.size, y, table, "y" in add)]


def backward(dtable, dy, add=NONE) -> list[Native]:
    return [POSITIONS_BACKWARD.bind(dy.size, dtable, dy, "dtable" in add)]


def positions(y, table, add):
    batch, time, width = y.shape
    for row in prange(batch * time):
        b, t = row // time, row % time
        out, place = y[b, t], table[t]
        if add:
            for c in range(width):
                out[c] += place[c]
        else:
            for c in range(width):
                out[c] = place[c]


def positions_backward(dtable, dy, add):
    batch, time, width = dy.shape
    for t in prange(dtable.shape[0]):
        out = dtable[t]
        if not add:
            out[:] = float32(0)
        if t < time:
            for b in range(batch):
                row = dy[b, t]
                for c in range(width):
                    out[c] += row[c]


POSITIONS, POSITIONS_BACKWARD = Kernel(positions), Kernel(positions_backward)
