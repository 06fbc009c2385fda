"""Whole tensors of chosen steps: every array that a call of the step wrote, and what calls read that no call wrote,
weights and inputs.

A result is called by its call's number and its argument, `57.dx`, as one buffer has several results in a step; all else
by its own name. bfloat16 is kept as float32, which holds the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.safetensors import read_safetensors
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import PREPARED, Call, View
from tapeless.shown import size
from tapeless.train.history.files import StepFiles
from tapeless.train.history.record import PHASES, Header

FOLDER = "tensors"
MOST_BYTES = 1 << 30  # of a run's


class Tensors:
    """The tensors of a training that goes on in this process."""

    def __init__(self, folder: Path, model: Model, header: Header, steps: Sequence[int]) -> None:
        self.steps, self.files = frozenset(steps), StepFiles(folder / FOLDER, "the tensors")
        self._model, self._listing = model, header.listing
        self._wanted = _wanted(model) if steps else {}
        self._check_size(len(steps))

    def _check_size(self, count: int) -> None:
        """Before anything is trained."""
        kept = {name: view for views in self._wanted.values() for name, view in views}
        each = sum(view.elements * _item(self._model, view) for view in kept.values())
        if each * count > MOST_BYTES:
            fit = MOST_BYTES // each
            remedy = f"name at most {fit}" if fit else "make batch or time smaller, or leave it out"
            raise TapelessError(
                f"the tensors of a step take {size(each)} here and those of {count} steps {size(each * count)}, and a "
                f"run keeps at most {size(MOST_BYTES)} of them: {remedy}."
            )

    def taken(self, step: int, walk: Iterator[Call]) -> Iterator[Call]:
        """The same walk; right after a call ran, what it wrote is kept, and what it read that no call wrote."""
        found: dict[str, Array] = {}
        for call in walk:
            for name, view in self._wanted.get(id(call), ()):
                found[name] = np.array(self._model.engine.read(view))
            yield call
        self.files.add(step, found, {"listing": self._listing})


def _wanted(model: Model) -> dict[int, list[tuple[str, View]]]:
    """For each call, by identity, what is kept once it ran: each under its name."""
    found: dict[int, list[tuple[str, View]]] = {}
    known: set[str] = set()
    for number, call in enumerate(model.program.calls):
        if call.phase not in PHASES:
            continue
        given = [each.view for each in call.arguments if each.mode == "read" and each.view.buffer.kind in PREPARED]
        taken = [(view.name, view) for view in given if view.name not in known]
        known |= {name for name, _ in taken}
        found[id(call)] = taken + [(f"{number}.{each.name}", each.view) for each in call.writes]
    return found


def _item(model: Model, view: View) -> int:
    """Bytes of an element as it is kept."""
    dtype = model.precision.dtype(view.buffer.role)
    return np.dtype("float32" if dtype == "bfloat16" else dtype).itemsize


@dataclass(frozen=True)
class KeptArgument:
    """An argument of a call as it was at a step that was kept."""

    name: str
    mode: str
    buffer: str
    values: Array


def kept_arguments(path: Path, header: Header, number: int) -> list[KeptArgument]:
    """What one call of a record wrote, and all that is kept of what it read."""
    stored = read_safetensors(path)
    if stored.metadata.get("listing") != header.listing:
        raise TapelessError(f"{path.name} belongs to another list of calls than the record.")
    call = header.calls[number]
    found = []
    for name, buffer in call["reads"].items():
        key = _last_written(header, number, buffer)
        if key in stored:
            found.append(KeptArgument(name, "read", buffer, stored[key]))
    for result in call["results"]:
        key = f"{number}.{result['argument']}"
        if key not in stored or list(stored[key].shape) != result["shape"]:
            raise TapelessError(f"{path.name} does not hold what call {number} wrote: it is damaged.")
        found.append(KeptArgument(result["argument"], result["access"], result["buffer"], stored[key]))
    return found


def _last_written(header: Header, number: int, buffer: str) -> str:
    """The name under which a buffer is kept as a call reads it: what the call before it left of it. If a part of it was
    written since then, nothing is kept that is the same."""
    whole = buffer.partition("[")[0]
    for earlier in range(number - 1, -1, -1):
        if header.calls[earlier]["phase"] not in PHASES:
            continue
        for result in header.calls[earlier]["results"]:
            if result["buffer"].partition("[")[0] == whole:
                return f"{earlier}.{result['argument']}" if result["buffer"] == buffer else ""
    return buffer
