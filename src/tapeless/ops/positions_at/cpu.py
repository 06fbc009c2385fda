"""Positions from a place on, on the CPU."""

from __future__ import annotations

from numba import prange

from tapeless.kernels.cpu import Kernel
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE


def forward(y, table, position, add=NONE) -> list[Native]:
    return [POSITIONS_AT.bind(y.size, y, table, position, "y" in add)]


def positions_at(y, table, position, add):
    batch, time, width = y.shape
    start = position[0]
    for row in prange(batch * time):
        b, t = row // time, row % time
        out, place = y[b, t], table[start + t]
        if add:
            for c in range(width):
                out[c] += place[c]
        else:
            for c in range(width):
                out[c] = place[c]


POSITIONS_AT = Kernel(positions_at)
