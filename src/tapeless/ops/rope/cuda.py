"""RoPE on the GPU. What is turned, and where it goes, are mostly columns of wider buffers."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers, width
from tapeless.kernels.native import Native


def forward(y, x, cos, sin) -> list[Native]:
    return _turn(y, x, cos, sin, back=False)


def backward(dx, dy, cos, sin) -> list[Native]:
    return _turn(dx, dy, cos, sin, back=True)


def _turn(y, x, cos, sin, back) -> list[Native]:
    batch, time, channels = x.shape
    _, places, pairs = cos.shape
    heads = channels // (2 * pairs)
    arguments = (y, x, cos, sin, *y.stride()[:2], *x.stride()[:2], time, places, heads, pairs)
    return [launch(_turned, batch * time * heads, *arguments, BACK=back, WIDTH=width(pairs), num_warps=1)]


@triton.jit
def _turned(
    Y, X, COS, SIN, y_batch, y_step, x_batch, x_step, T, S, H, A, BACK: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    b, t = row // T, row % T
    a = tl.arange(0, WIDTH)
    inside = a < A
    angle = (b * S + t + S - T) * A + a
    cos, sin = numbers(COS + angle, inside), numbers(SIN + angle, inside)
    sin = -sin if BACK else sin
    at = X + b * x_batch + t * x_step + head * 2 * A + a
    first, second = numbers(at, inside), numbers(at + A, inside)
    to = Y + b * y_batch + t * y_step + head * 2 * A + a
    tl.store(to, first * cos - second * sin, mask=inside)  # (1) (2)
    tl.store(to + A, second * cos + first * sin, mask=inside)
