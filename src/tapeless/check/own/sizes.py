"""Somebody's example inputs at other sizes: one, odd, at the edges of blocks and beyond them.

Axes of one size are taken for one axis that several inputs share, unless `shapes` names them; an axis of size 1 stays.
What an array holds is drawn from what it held: indices stay indices that are there, what is positive stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops.contract import Array, Dims

EDGES = (1, 2, 17, 64, 65, 257, 1031)  # a vector's rest, a block, one beyond it, more than 1,024
ODD = (3, 7, 5, 11, 13, 9)  # all axes at once
SMALL = 12  # what other axes shrink to where they must, and those of extreme numbers

Letters = list[list[str]]  # of each input, one per axis; none for what is no array


def letters_of(inputs: Sequence[Any], shapes: Sequence[str] | None) -> tuple[Letters, Dims]:
    """The axes of the inputs by name, and their sizes."""
    arrays = [value if isinstance(value, np.ndarray) else None for value in inputs]
    if shapes is not None:
        return _said(arrays, shapes)
    letters = [[_letter(size) for size in array.shape] if array is not None else [] for array in arrays]
    dims = {_letter(size): size for array in arrays if array is not None for size in array.shape if size > 1}
    return letters, dims


def _letter(size: int) -> str:
    return "1" if size == 1 else f"n{size}"


def _said(arrays: Sequence[Array | None], shapes: Sequence[str]) -> tuple[Letters, Dims]:
    if isinstance(shapes, str) or len(shapes) != len(arrays):
        raise TapelessError(
            f"shapes must say the axes of each of the {len(arrays)} inputs, such as ['R C', 'C', ''], not {shapes!r}."
        )
    letters, dims = [list(map(str, each.split())) for each in shapes], Dims()
    for number, (array, names) in enumerate(zip(arrays, letters, strict=True)):
        shape = () if array is None else array.shape
        if len(shape) != len(names):
            raise TapelessError(f"shapes says {' '.join(names)!r} of input {number}, which has {len(shape)} axes.")
        for name, size in zip(names, shape, strict=True):
            known = int(name) if name.isdigit() else dims.setdefault(name, size)
            if known != size:
                raise TapelessError(
                    f"shapes calls two axes {name}, but one is {known} and one, of input {number}, {size}."
                )
    return letters, dims


def other_sizes(letters: Letters, dims: Dims, largest: int, most: int) -> Iterator[Dims]:
    """All axes 1, all of them odd, then each by itself at the edges; no input with more than `most` numbers, for which
    the other axes shrink."""
    if not dims:
        return
    yield dict.fromkeys(dims, 1)
    yield dict(zip(dims, (ODD[i % len(ODD)] for i in range(len(dims))), strict=True))
    for letter in dims:
        for size in EDGES:
            for others in (max(dims.values()), SMALL, 2) if size <= largest else ():
                wanted = {each: size if each == letter else min(old, others) for each, old in dims.items()}
                if _largest(letters, wanted) <= most:
                    if wanted != dims:
                        yield wanted
                    break


def _largest(letters: Letters, dims: Dims) -> int:
    return max(prod(_size(letter, dims) for letter in each) for each in letters)


def _size(letter: str, dims: Dims) -> int:
    return int(letter) if letter.isdigit() else dims[letter]


def resized(inputs: Sequence[Any], letters: Letters, dims: Dims, rng: np.random.Generator) -> list[Any]:
    made: list[Any] = []
    for value, each in zip(inputs, letters, strict=True):
        shape = tuple(_size(letter, dims) for letter in each)
        if not isinstance(value, np.ndarray) or shape == value.shape or not value.size:
            made.append(value)
            continue
        drawn = rng.choice(value.reshape(-1), shape)
        if value.dtype.kind == "f":
            drawn = (drawn * rng.uniform(0.8, 1.2, shape)).astype(np.float32).astype(np.float64)
        made.append(drawn)
    return made


def title(names: Sequence[str], inputs: Sequence[Any]) -> str:
    """The sizes of the inputs, for people: x 3×65, weight 65."""
    arrays = [(name, value) for name, value in zip(names, inputs, strict=True) if isinstance(value, np.ndarray)]
    return ", ".join(f"{name} {'×'.join(map(str, value.shape)) or 'a number'}" for name, value in arrays)


def summed(result: Array, read: Sequence[Any]) -> int:
    """How many numbers go into one of the result: those axes of what is read that the result does not have; where it
    has them all, its own longest."""
    counts = []
    for value in read:
        if isinstance(value, np.ndarray):
            lacking: Counter[int] = Counter(value.shape) - Counter(result.shape)
            counts.append(prod(lacking.elements()))
    most = max(counts, default=1)
    return most if most > 1 else max(result.shape, default=1)
