"""Orders drawn from a seed, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tapeless.ops.contract import Array


def random_bits(*seed: int) -> np.random.PCG64:
    """Raw bits of a bit generator are the same in every version of NumPy; a permutation is not promised to be."""
    return np.random.PCG64(list(seed))


def order(bits: np.random.PCG64, count: int) -> Array:
    """0 … count − 1, shuffled."""
    return np.argsort(bits.random_raw(count), kind="stable")


def held_out(sizes: Array, drawn: Iterable[int], share: float) -> Array:
    """Which of several texts are held out: in the order in which they are drawn, each that does not exceed the share of
    the whole; where none is small enough, the smallest."""
    left, held = share * int(sizes.sum()), np.zeros(len(sizes), bool)
    for number in dict.fromkeys(drawn):
        if sizes[number] <= left:
            left -= int(sizes[number])
            held[number] = True
    if not held.any():
        held[sizes.argmin()] = True
    return held
