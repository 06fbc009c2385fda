"""Angles on the CPU."""

from __future__ import annotations

from math import cos, sin

from numba import float32, prange

from tapeless.kernels.cpu import Kernel
from tapeless.kernels.native import Native

WORK = 16  # a cosine and a sine cost as much as so many elements of other kernels


def forward(cos, sin, places, rates) -> list[Native]:
    return [ANGLES.bind(cos.size * WORK, cos, sin, places, rates)]


def angles(cosines, sines, places, rates):
    batch, time = places.shape
    for row in prange(batch * time):
        b, t = row // time, row % time
        for a in range(rates.size):
            angle = places[b, t] * rates[a]
            cosines[b, t, a] = float32(cos(angle))
            sines[b, t, a] = float32(sin(angle))


ANGLES = Kernel(angles)
