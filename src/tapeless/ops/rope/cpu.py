"""RoPE on the CPU. What is turned, and where it goes, are mostly columns of wider buffers."""

from __future__ import annotations

from numba import prange

from tapeless.kernels.cpu import Kernel, inlined, strided
from tapeless.kernels.native import Native


def forward(y, x, cos, sin) -> list[Native]:
    return _turn(y, x, cos, sin, back=False)


def backward(dx, dy, cos, sin) -> list[Native]:
    return _turn(dx, dy, cos, sin, back=True)


def _turn(y, x, cos, sin, back) -> list[Native]:
    batch, time, channels = x.shape
    rows = [each.reshape(batch * time, channels, copy=False) for each in (y, x)]
    return [ROPE.bind(x.size, *strided(*rows), batch, time, channels, cos, sin, back)]


def rope(y, y_step, x, x_step, batch, time, channels, cos, sin, back):
    pairs = cos.shape[2]
    for row in prange(batch * time):
        b, t = row // time, row % time + cos.shape[1] - time
        for head in range(channels // (2 * pairs)):
            to, at = row * y_step + head * 2 * pairs, row * x_step + head * 2 * pairs
            first, second = x[at : at + pairs], x[at + pairs : at + 2 * pairs]
            if back:
                _turn_back(y[to : to + pairs], y[to + pairs : to + 2 * pairs], first, second, cos[b, t], sin[b, t])
            else:
                _turned(y[to : to + pairs], y[to + pairs : to + 2 * pairs], first, second, cos[b, t], sin[b, t])


@inlined
def _turned(to_first, to_second, first, second, cos, sin):
    for a in range(cos.size):
        to_first[a] = first[a] * cos[a] - second[a] * sin[a]  # (1)
        to_second[a] = second[a] * cos[a] + first[a] * sin[a]


@inlined
def _turn_back(to_first, to_second, first, second, cos, sin):
    for a in range(cos.size):
        to_first[a] = first[a] * cos[a] + second[a] * sin[a]  # (2)
        to_second[a] = second[a] * cos[a] - first[a] * sin[a]


ROPE = Kernel(rope)
