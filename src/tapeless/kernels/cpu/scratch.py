"""Scratch: what a kernel needs while it runs and nobody reads afterwards.

The calls of one arena run one after the other, so those that ask for the same shape are given the same memory. Two
arenas have nothing in common: two models may run in two threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Pool = dict[tuple[int, ...], Array]
_pool: ContextVar[Pool | None] = ContextVar("pool", default=None)


@contextmanager
def taken_from(pool: Pool) -> Iterator[None]:
    """What is bound meanwhile, in this thread, takes its scratch from here."""
    before = _pool.set(pool)
    try:
        yield
    finally:
        _pool.reset(before)


def borrowed(*shape: int) -> Array:
    """float32; it holds anything. A call that is bound by itself has its own."""
    pool = _pool.get()
    if pool is None:
        return np.empty(shape, np.float32)
    if shape not in pool:
        pool[shape] = np.empty(shape, np.float32)
    return pool[shape]
