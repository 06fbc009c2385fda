"""Clip on the CPU: two numbers."""

from __future__ import annotations

from math import isfinite

from tapeless.kernels.cpu import Kernel
from tapeless.kernels.native import Native


def forward(scale, finite, loss, norm, limit, largest) -> list[Native]:
    return [CLIP.bind(1, scale, finite, loss, norm, limit, largest)]


def clip(scale, finite, loss, norm, limit, largest):
    scale[0] = limit[0] / norm[0] if norm[0] > limit[0] else 1.0
    finite[0] = isfinite(loss[0]) and norm[0] * scale[0] < largest[0]


CLIP = Kernel(clip)
