"""A run's lines of metrics as columns: what is asked of many lines, at a few bytes for each.

Lines are taken one by one as they come, so that whoever follows a run reads each of them once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from tapeless.ops.contract import Array

Line = Mapping[str, Any]
FIELDS = ("loss", "lr", "gradient_norm", "tokens_per_second")
NAN = float("nan")
LAST = (1 << 63) - 1  # of all steps that can be counted
MOST_LAYOUTS = 1000  # different sets of layers; a model has one


class Course:
    """`steps` and the columns of FIELDS are in the order of the lines; NaN stands for what is not there or no number.
    Lines that are few are kept whole."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values = array("d")
        self._silent: list[int] = []  # lines of updates that say nothing of a loss
        self.norms, self.ratios = Layers(), Layers()
        self.start: Line = {}
        self.evaluations: list[Line] = []
        self.stops: list[Line] = []
        self.spikes: list[int] = []

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
        get = line.get
        try:
            self._values.extend([get("loss"), get("lr"), get("gradient_norm"), get("tokens_per_second")])  # type: ignore[list-item]
        except (TypeError, OverflowError):
            del self._values[at * len(FIELDS) :]
            self._values.extend([_or_nan(line, name) for name in FIELDS])
        if "loss" not in line:
            self._silent.append(at)
        self._steps.append(min(line["step"], LAST))
        self.norms.add(at, get("gradient_norms"))
        self.ratios.add(at, get("update_ratios"))

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


class _Layout:
    def __init__(self) -> None:
        self.lines = array("q")
        self.values = array("d")
        self.middles = array("d")


class Layers:
    """A number for each layer, line by line. Lines with the same layers stand together."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._names: tuple[str, ...] = ()
        self._last = _Layout()

    def add(self, line: int, values: Any) -> None:
        if not isinstance(values, dict) or not values:
            return
        names = tuple(values)
        if names != self._names:
            if names not in self._layouts and len(self._layouts) >= MOST_LAYOUTS:
                return
            self._last, self._names = self._layouts.setdefault(names, _Layout()), names
        last = self._last
        try:
            last.values.extend(values.values())
        except (TypeError, OverflowError):
            del last.values[len(last.lines) * len(names) :]
            last.values.extend([_or_nan(values, name) for name in names])
        last.lines.append(line)

    def middle(self, count: int) -> Array:
        """The median over the layers, of each of `count` lines; NaN where there is none. Each is computed once."""
        found = np.full(count, NAN)
        for names, layout in self._layouts.items():
            done = len(layout.middles)
            new = np.array(layout.values[done * len(names) :], np.float64).reshape(-1, len(names))
            layout.middles.frombytes(_medians(new).tobytes())
            found[np.array(layout.lines, np.int64)] = layout.middles
        return found

    def shares(self, chosen: Array, beginning: str) -> dict[str, float]:
        """Of each layer whose name begins so, the median over the chosen lines of its share of the largest one's."""
        every: dict[str, list[Array]] = {}
        for names, layout in self._layouts.items():
            picked = [at for at, name in enumerate(names) if name.startswith(beginning)]
            rows = chosen[np.array(layout.lines, np.int64)]
            values = np.array(layout.values, np.float64).reshape(-1, len(names))[rows][:, picked]
            if not values.size:
                continue
            known = np.isfinite(values)
            largest = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
            shares = np.zeros_like(values)
            with np.errstate(over="ignore"):
                np.divide(values, largest, out=shares, where=known & (largest != 0))
            for column, at in enumerate(picked):
                every.setdefault(names[at], []).append(shares[known[:, column], column])
        joined = {name: np.concatenate(parts) for name, parts in every.items()}
        return {name: median(values) for name, values in joined.items() if len(values)}


def _medians(rows: Array) -> Array:
    known = np.isfinite(rows)
    if not len(rows) or not known.all():
        return np.array([median(row[here]) if here.any() else NAN for row, here in zip(rows, known, strict=True)])
    with np.errstate(over="ignore"):
        found: Array = np.median(rows, axis=1)
    return found


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


def _or_nan(line: Line, name: str) -> float:
    found = number(line, name)
    return NAN if found is None else found
