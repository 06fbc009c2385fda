"""A run's weights at a few moments of its training, close together at the beginning, where most happens.

With the weights of a moment everything else of that moment can be computed again: answers, what heads look at, every
gradient of any example. A file of float32 rows behind one line of JSON, as records are; at most 10 MB, so a large model
keeps none, and its checkpoints are what there is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import perform
from tapeless.files.plain import parse_json, read_plain
from tapeless.model import Model
from tapeless.ops.contract import Array, Shape
from tapeless.train import checkpoint
from tapeless.train.records import ALIGNMENT, HIGH, steps_of, whole_rows
from tapeless.train.rows import Rows
from tapeless.train.run import Run

FILE = "moments.f32"
FORMAT = 1
MOST_BYTES = 10_000_000
FEWEST = 6  # a model of which fewer moments would fit keeps none
LARGEST = 64_000_000  # bytes that are read; a writer keeps to far fewer
LEAD = 2  # columns before the weights: a step has two, as in records
RATIO = sqrt(2)  # of a moment's step to that of the one before
LAST = 1 << 53  # steps beyond which nobody trains


def _series() -> tuple[int, ...]:
    found = [0]
    while found[-1] < LAST:
        found.append(max(found[-1] + 1, ceil(found[-1] * RATIO)))
    return tuple(found)


SERIES = _series()  # the steps of all moments there can be


class Moments:
    """Of a training that goes on in this process."""

    def __init__(self, folder: Path, model: Model, most: int = MOST_BYTES) -> None:
        self._model = model
        self._rows = Rows(folder / FILE, "cannot keep the weights of step {step} in {path}")
        self._shapes = {name: tuple(array.shape) for name, array in model.params.items()}
        self._capacity = (most - len(_encoded(self._shapes, LAST))) // (4 * (LEAD + model.parameters))
        self._keep_every(1)

    def _keep_every(self, every: int) -> None:
        self._every, self._steps = every, frozenset(SERIES[::every])

    @property
    def path(self) -> Path:
        return self._rows.path

    def due(self, step: int, last: bool = False) -> bool:
        return self._capacity >= FEWEST and (last or step in self._steps)

    def take(self, step: int, last: bool = False) -> None:
        """The weights as they are after so many updates, where it is time for it."""
        if not self.due(step, last) or step in self._rows.steps:
            return
        row = np.empty(LEAD + self._model.parameters, np.float32)
        row[:LEAD] = step % HIGH, step // HIGH
        with np.errstate(over="ignore"):
            np.concatenate(
                [each.ravel() for each in self._model.weights().values()], out=row[LEAD:], casting="same_kind"
            )
        self._rows.add(step, row)
        while len(self._rows.steps) > self._capacity:  # from here on they lie further apart
            self._keep_every(2 * self._every)
            self._rows.thin(lambda each: each in self._steps or (last and each == step))

    def write(self) -> None:
        """What was taken. Where it does not reach the disk it is kept, and can be tried again."""
        self._rows.write(_encoded(self._shapes, self._every))

    def sync(self) -> None:
        self._rows.sync()

    def cut_after(self, step: int) -> None:
        """Go on with those that are there, without what lies beyond a step; what belongs to no such model goes."""
        if not self.path.exists():
            return
        try:
            found = read_moments(self.path)
            rows = found.rows[steps_of(found.rows) <= step] if found.shapes == self._shapes else found.rows[:0]
        except TapelessError:
            rows = None
        if rows is None or not len(rows):
            with suppress(OSError):
                perform(self.path.unlink)
            return
        self._keep_every(found.every)
        steps = [int(each) for each in steps_of(rows).tolist()]
        self._rows.go_on(_encoded(self._shapes, self._every), steps, rows)


def _encoded(shapes: dict[str, Shape], every: int) -> bytes:
    line = json.dumps({"format": FORMAT, "every": every, "weights": shapes}).encode()
    return line + b" " * (-(len(line) + 1) % ALIGNMENT) + b"\n"


@dataclass(frozen=True)
class Kept:
    """What a file holds."""

    head: bytes
    shapes: dict[str, Shape]
    rows: Array
    lost: int = 0  # rows from the first that is damaged on
    every: int = 1  # of the moments there could be, each so many-th is kept: doubled when the file is full

    @property
    def steps(self) -> list[int]:
        return [int(step) for step in steps_of(self.rows).tolist()]

    def weights(self, index: int) -> dict[str, Array]:
        """By name, at one of its moments."""
        found, at = {}, LEAD
        for name, shape in self.shapes.items():
            found[name] = self.rows[index, at : at + prod(shape)].reshape(shape)
            at += prod(shape)
        return found


def read_moments(path: Path) -> Kept:
    try:
        content = read_plain(path, LARGEST)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    line, newline, _ = content.partition(b"\n")
    try:
        said = parse_json(line) if newline else None
    except ValueError:
        said = None
    if not (isinstance(said, dict) and said.get("format") == FORMAT and _are_shapes(said.get("weights"))):
        raise TapelessError(f"{path} does not hold the weights of a run's moments, or is damaged: remove it.")
    every = said.get("every", 1)
    if type(every) is not int or not 0 < every <= LAST:
        raise TapelessError(f"{path} is damaged (every is {every!r}): remove it.")
    shapes = {name: tuple(shape) for name, shape in said["weights"].items()}
    width = LEAD + sum(prod(shape) for shape in shapes.values())
    # The moment before the first update has step 0, which no record has.
    rows = whole_rows(content, len(line) + 1, width, first=0)
    return Kept(line + newline, shapes, rows, (len(content) - len(line) - 1) // (4 * width) - len(rows), every)


def _are_shapes(said: Any) -> bool:
    return isinstance(said, dict) and all(
        isinstance(shape, list) and all(type(size) is int and 0 < size <= LARGEST for size in shape)
        for shape in said.values()
    )


def over_training(opened: Run) -> Iterator[tuple[int, dict[str, Array]]]:
    """The weights of a run at every moment that is kept, the oldest first: those of its moments, or of its checkpoints
    where it has none. What is damaged is passed over."""
    path = opened.folder / FILE
    if os.path.lexists(path):
        kept = read_moments(path)
        yield from ((step, kept.weights(index)) for index, step in enumerate(kept.steps))
        return
    for step in checkpoint.steps(opened.checkpoints):
        try:
            here = checkpoint.at(opened.checkpoints, step)
        except TapelessError:
            continue
        if here is not None:  # a training may just have removed it
            yield step, here.tensors("weights")
