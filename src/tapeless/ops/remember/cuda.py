"""Remember on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, width
from tapeless.kernels.native import Native


def forward(keys, values, k, v, position) -> list[Native]:
    batch, heads, held, channels = keys.shape
    runs = []
    for cache, new in ((keys, k), (values, v)):
        arguments = (cache, new, new.stride(0), new.stride(1), position, new.shape[1], heads, held, channels)
        runs.append(launch(_remember, batch * heads * new.shape[1], *arguments, WIDTH=width(channels), num_warps=1))
    return runs


@triton.jit
def _remember(CACHE, NEW, batch_stride, time_stride, POSITION, T, H, P, D, WIDTH: tl.constexpr):
    head, t = tl.program_id(0).to(tl.int64) // T, tl.program_id(0) % T
    d = tl.arange(0, WIDTH)
    new = tl.load(NEW + head // H * batch_stride + t * time_stride + head % H * D + d, mask=d < D)
    tl.store(CACHE + (head * P + tl.load(POSITION) + t) * D + d, new, mask=d < D)  # (1)
