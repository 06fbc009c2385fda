"""A GPU's own clock, and what it can do. Its calls are still running when they return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from tapeless.bench.profile import best
from tapeless.kernels.native import Native

SIZE, BYTES = 8192, 1 << 30


def seconds(natives: Sequence[Native]) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for native in natives:
        native()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000


def ceilings(dtype: str, size: int = SIZE, copied: int = BYTES, device: str = "cuda") -> dict[str, float]:
    """The fastest of a few square products of this type, in GFLOP/s, and of a few copies, in GB/s."""
    a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    product, copy = partial(torch.mm, a, b, out=torch.empty_like(a)), partial(torch.empty_like(source).copy_, source)
    return {
        "peak_gflops": 2 * size**3 / best(product, seconds) / 1e9,
        "peak_gbytes": 2 * copied / best(copy, seconds) / 1e9,
    }
