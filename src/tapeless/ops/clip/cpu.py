"""Clip on the CPU: one number."""

from __future__ import annotations

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.native import Native


def forward(scale, norm, limit) -> list[Native]:
    return [CLIP.bind(1, scale, norm, limit)]


def clip(scale, norm, limit):
    scale[0] = limit[0] / norm[0] if norm[0] > limit[0] else 1.0


CLIP = Kernel(clip)
