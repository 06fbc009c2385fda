"""Snapshots: a run's weights at a few of its steps, close together at the beginning, where most happens.

With the weights of a step everything else of that step can be computed again: answers, what heads look at, every
gradient of any example. They take at most 10 MB, so a large model keeps none, and its checkpoints are what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.safetensors import read_safetensors
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.train.history.files import StepFiles, files_in

FOLDER = "snapshots"
MOST_BYTES = 10_000_000
FEWEST = 6  # a model of which fewer snapshots would fit keeps none
LARGEST = 64_000_000  # bytes that are read; a writer keeps to far fewer
ENTRY = 128  # bytes in a file's header for each array, besides its name; at most so many
RATIO = sqrt(2)  # of a snapshot's step to that of the one before
LAST = 1 << 53  # no training makes more steps


def _series() -> tuple[int, ...]:
    found = [0]
    while found[-1] < LAST:
        found.append(max(found[-1] + 1, ceil(found[-1] * RATIO)))
    return tuple(found)


SERIES = _series()  # the steps of all snapshots there can be
POSSIBLE = frozenset(SERIES)


class Snapshots:
    """The snapshots of a training that goes on in this process."""

    def __init__(self, folder: Path, model: Model, most: int = MOST_BYTES) -> None:
        self._model, self.files = model, StepFiles(folder / FOLDER, "the weights")
        header = sum(ENTRY + len(name.encode()) for name in model.params)
        self._capacity = most // (4 * model.parameters + header)

    def due(self, step: int, last: bool = False) -> bool:
        return self._capacity >= FEWEST and (last or (step in POSSIBLE and step in self._until(step)))

    def _until(self, step: int) -> set[int]:
        """The steps that are kept when so many are made, with room for one more: all of the series, or as soon as these
        are too many every second, every fourth, …"""
        made = [each for each in SERIES if each <= step]
        every = 1
        while len(made[::every]) >= self._capacity:
            every *= 2
        return set(made[::every])

    def take(self, step: int, last: bool = False) -> None:
        """Keep the weights as they are after so many updates, if it is time for it."""
        if not self.due(step, last) or step in self.files.steps:
            return
        with np.errstate(over="ignore"):
            self.files.add(step, {name: each.astype(np.float32) for name, each in self._model.weights().items()})
        kept = self._until(step) | {step}
        self.files.thin(kept.__contains__)


@dataclass(frozen=True)
class KeptSnapshots:
    """What a folder holds: weights by step, the oldest first."""

    weights: Mapping[int, dict[str, Array]]
    lost: int = 0  # snapshots that are damaged

    @property
    def steps(self) -> list[int]:
        return [*self.weights]


def read_snapshots(folder: Path) -> KeptSnapshots:
    """All that are kept in a run's folder."""
    paths = files_in(folder / FOLDER)
    weights, lost, read = {}, 0, 0
    for step, path in paths.items():
        try:
            stored = read_safetensors(path)
        except TapelessError:
            lost += 1
            continue
        read += sum(array.nbytes for array in stored.values())
        if read > LARGEST:
            raise TapelessError(f"{folder / FOLDER} holds more than the snapshots of any run: remove it.")
        if any(array.dtype != np.float32 for array in stored.values()):
            lost += 1
        else:
            weights[step] = {name: np.array(array) for name, array in stored.items()}
    return KeptSnapshots(weights, lost)
