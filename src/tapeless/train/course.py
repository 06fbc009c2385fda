"""A run's lines of metrics as columns: what is asked of many lines, at a few bytes for each.

Lines are taken one by one as they come, so that a page that follows a run reads each of them once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from statistics import median as middle
from typing import Any

import numpy as np

from tapeless.ops.contract import Array

Line = Mapping[str, Any]
READ = ("loss", "lr", "gradient_norm", "tokens_per_second")
FIELDS = (*READ, "moved")  # the last: the median over the layers of how far an update moved them
LAST = (1 << 63) - 1  # of all steps that can be counted
BLOCK = "blocks."


class Course:
    """`steps` and the columns of FIELDS are in the order of the lines; NaN stands for what is not there or no number.
    Of the other kinds of lines there are few, and they are kept whole."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values = array("d")
        self._silent: list[int] = []  # lines of updates that say nothing of a loss
        self._blocks: tuple[str, ...] = ()  # whose gradient norms are kept, and of which lines
        self._norms, self._normed = array("d"), array("q")
        self.start: Line = {}
        self.evaluations: list[Line] = []
        self.stops: list[Line] = []
        self.spikes: list[int] = []

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Course:
        course = cls()
        for line in lines:
            course.add(line)
        return course

    def __len__(self) -> int:
        """Lines of updates."""
        return len(self._steps)

    def add(self, line: Line) -> None:
        kind = line["kind"]
        if kind == "step":
            self._add_step(line)
        elif kind == "evaluation":
            self.evaluations.append(line)
        elif kind == "stop":
            self.stops.append(line)
        elif kind == "spike":
            self.spikes.append(line["step"])
        elif kind == "start" and not self.start:
            self.start = line

    def _add_step(self, line: Line) -> None:
        at = len(self._steps)
        if "loss" not in line:
            self._silent.append(at)
        moved = numbers(line, "update_ratios").values()
        self._steps.append(min(line["step"], LAST))
        self._values.extend([_or_nan(line, name) for name in READ])
        self._values.append(middle(moved) if moved else nan)
        norms = line.get("gradient_norms")
        blocks = [name for name in norms if name.startswith(BLOCK)] if isinstance(norms, Mapping) else []
        if norms and blocks:
            if self._blocks != tuple(blocks):  # another model's: only the last one's are of use
                self._blocks, self._norms, self._normed = tuple(blocks), array("d"), array("q")
            self._norms.extend([_or_nan(norms, name) for name in blocks])
            self._normed.append(at)

    @property
    def steps(self) -> Array:
        return np.array(self._steps, np.int64)

    def columns(self, first: int = 0) -> Array:
        """(lines, FIELDS), from a line on."""
        return np.array(self._values[first * len(FIELDS) :], np.float64).reshape(-1, len(FIELDS))

    def lost(self) -> Array:
        """Of each line whether it has a loss that is no number."""
        found: Array = ~np.isfinite(self.columns()[:, 0])
        found[self._silent] = False
        return found

    def profile(self, chosen: Array) -> dict[str, float]:
        """Of each block, the median over the chosen lines of its gradient norm as a fraction of the largest block's."""
        rows = chosen[np.array(self._normed, np.int64)]
        values = np.array(self._norms, np.float64).reshape(-1, len(self._blocks) or 1)[rows]
        if not values.size:
            return {}
        known = np.isfinite(values)
        largest = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
        fractions = np.zeros_like(values)
        with np.errstate(over="ignore"):
            np.divide(values, largest, out=fractions, where=known & (largest != 0))
        columns = zip(self._blocks, fractions.T, known.T, strict=True)
        return {name: median(column[here]) for name, column, here in columns if here.any()}


def median(values: Array | Sequence[float]) -> float:
    with np.errstate(over="ignore"):
        return float(np.median(values))


def number(line: Line, name: str) -> float | None:
    """None for what is not there or is none, and for null, which stands for NaN and infinity."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number beyond every float
        return None
    return found if isfinite(found) else None


def numbers(line: Line, name: str) -> dict[str, float]:
    """Those of a map of numbers that are finite."""
    values = line.get(name)
    if not isinstance(values, Mapping):
        return {}
    return {key: found for key in values if (found := number(values, key)) is not None}


def _or_nan(line: Line, name: str) -> float:
    found = number(line, name)
    return nan if found is None else found
