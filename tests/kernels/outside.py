"""A kernel that is wrong: of every block the slice it writes is one too short, so it writes beyond it."""

from __future__ import annotations

import numpy as np
from numba import prange

from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.vector import inlined

BLOCK = 100


def copy(y, x):
    for block in prange(x.size // BLOCK):
        at = block * BLOCK
        _copy(y[at : at + BLOCK - 1], x[at : at + BLOCK])


@inlined
def _copy(y, x):
    for i in range(x.size):
        y[i] = x[i]


def run(threaded: bool) -> None:
    dispatch.set_threads(min(2, dispatch.cores()))
    x = np.ones(10 * BLOCK, np.float32)
    y = np.zeros_like(x)
    Kernel(copy).bind(x.size, y, x, threaded_from=0 if threaded else 2 * x.size)()
    assert (y == x).all()
