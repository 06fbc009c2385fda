"""Guarded memory for a kernel under test, and what is said of how it writes.

Every array has a margin on either side, in which nothing belongs. Around what is read they hold NaN: what reads past an
end, and uses what it reads, shows it. Around what is written they hold a pattern that is no NaN: what writes there is
named, with how far past the end it went.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Shape

MARGIN, ALIGNMENT = 1 << 13, 64  # bytes
NAN, PATTERN = 0xFF, 0xA5  # four of the one are NaN, four of the other −2.9e-16
GARBAGE = 1.5  # what outputs are filled with, the last time, instead of NaN


@dataclass(frozen=True)
class Guarded:
    """An array in the form in which a kernel takes it, and the bytes that it lies in."""

    name: str
    given: Any  # NumPy's array, or a tensor
    whole: Any
    start: int
    size: int
    before: Array

    def values(self) -> Array:
        if isinstance(self.given, np.ndarray):
            return self.given.copy()
        found: Array = self.given.detach().cpu().numpy().copy()
        return found

    def _now(self) -> Array:
        if isinstance(self.whole, np.ndarray):
            return self.whole
        found: Array = self.whole.cpu().numpy()
        return found

    def strays(self) -> Iterator[str]:
        """What was written into the margins."""
        changed = np.flatnonzero(self._now() != self.before)
        beside = [int(place) for place in changed if not self.start <= place < self.start + self.size]
        if not beside:
            return
        itemsize = self.given.itemsize if isinstance(self.given, np.ndarray) else self.given.element_size()
        numbers = len({place // itemsize for place in beside})
        after = [place for place in beside if place >= self.start + self.size]
        where = (
            f"{(after[0] - self.start - self.size) // itemsize + 1} past its end"
            if after
            else f"{(self.start - beside[-1] - 1) // itemsize + 1} before its beginning"
        )
        many = "a number" if numbers == 1 else f"{numbers:,} numbers"
        yield f"it writes {many} outside {self.name}, the first {where}: an index runs out of the array."

    def changes(self) -> Iterator[str]:
        """What was written at all: for what is only read."""
        strays = list(self.strays())
        yield from strays
        if not strays and (self._now() != self.before).any():
            yield f"it changes {self.name}, which it only reads: a kernel works on a copy."


def with_margins(size: int, margin: int, fill: int = 0) -> tuple[Array, int]:
    """Bytes with a margin on either side, and where those between the margins begin."""
    whole = np.full(size + 2 * margin + ALIGNMENT, fill, np.uint8)
    return whole, margin + -(whole.ctypes.data + margin) % ALIGNMENT


def guarded(name: str, value: Array, device: Any, gaps: bool = False, margin: int = NAN) -> Guarded:
    """A copy of a value with margins of this byte. `gaps`: every other element of the last axis belongs to somebody
    else, so that the array is not contiguous."""
    gaps = gaps and value.ndim > 0
    shape: Shape = (*value.shape[:-1], 2 * value.shape[-1]) if gaps else value.shape
    size = prod(shape) * value.itemsize
    whole, start = with_margins(size, MARGIN, margin if value.dtype.kind == "f" else 0)
    if device is not None and device.type != "cpu":
        start = MARGIN
    view = whole[start : start + size].view(value.dtype).reshape(shape)
    view = view[..., ::2] if gaps else view
    view[...] = value
    before = whole.copy()
    if device is None:
        return Guarded(name, view, whole, start, size, before)
    torch = sys.modules["torch"]
    if device.type == "cpu":
        return Guarded(name, torch.from_numpy(view), whole, start, size, before)
    there = torch.from_numpy(whole).to(device)
    numbers = there[start : start + size].view(torch.from_numpy(np.empty(0, value.dtype)).dtype).reshape(shape)
    return Guarded(name, numbers[..., :: 2 if gaps else 1] if gaps else numbers, there, start, size, before)


def unsteady(first: dict[str, Array], again: list[dict[str, Array]]) -> Iterator[str]:
    for name, once in first.items():
        differ = np.any([bits(once) != bits(each[name]) for each in again], axis=0)
        if differ.any():
            yield (
                f"{name} differs between {len(again) + 1} runs on the same inputs, at {where_of(differ)}: "
                f"a race, a random number, or memory that nobody set."
            )


def left_unwritten(name: str, on_nan: Array, on_number: Array) -> Iterator[str]:
    """What became of an output that was full of NaN, and of the same when it was full of a number."""
    untouched = np.isnan(on_nan) & (on_number == GARBAGE)
    if untouched.any():
        yield f"it does not write {name} at {where_of(untouched)}."
        return
    depends = (bits(on_nan) != bits(on_number)) & ~(np.isnan(on_nan) & np.isnan(on_number))
    if depends.any():
        yield (
            f"{name} depends on what it held before, at {where_of(depends)}: it is added to, or read, "
            f"where it should be overwritten."
        )


def bits(array: Array) -> Array:
    return array.view(f"i{array.itemsize}")


def where_of(places: Array) -> str:
    first = tuple(int(axis) for axis in np.argwhere(places)[0])
    return f"{np.count_nonzero(places):,} of {places.size:,} places, first {first}"
