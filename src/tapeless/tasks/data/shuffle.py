"""Orders drawn from a seed, the same on every machine."""

from __future__ import annotations

import numpy as np

from tapeless.ops.contract import Array


def random_bits(*seed: int) -> np.random.PCG64:
    """Raw bits of a bit generator are the same in every version of NumPy; a permutation is not promised to be."""
    return np.random.PCG64(list(seed))


def order(bits: np.random.PCG64, count: int) -> Array:
    """0 … count − 1, shuffled."""
    return np.argsort(bits.random_raw(count), kind="stable")
