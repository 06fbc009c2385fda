"""Zero on the GPU."""

from __future__ import annotations

from tapeless.kernels.cuda.launch import Run


def forward(y) -> list[Run]:
    return [y.zero_]
