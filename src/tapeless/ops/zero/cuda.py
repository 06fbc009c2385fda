"""Zero on the GPU."""

from __future__ import annotations

from tapeless.kernels.native import Native


def forward(y) -> list[Native]:
    return [y.zero_]
