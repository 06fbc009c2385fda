"""The model of a run with the weights of any step that is kept: of its snapshots, its checkpoints, or its seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tapeless.errors import TapelessError
from tapeless.explorer.source import snapshots
from tapeless.explorer.tracing import Traced, check_size_of
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.train import checkpoint
from tapeless.train.run import Run, read_weights
from tapeless.train.upcoming import kept_steps, standing_at


class Remembered:
    """One model at a time, given the weights of whatever step is asked for; somebody else sees to it that one request
    at a time asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._model: Model | None = None
        self._first: dict[str, Array] | None = None  # weights of before the first step

    def steps(self, run: Run) -> list[int]:
        return sorted({*kept_steps(run), *snapshots(self.folder).steps})

    def lost(self) -> int:
        """Snapshots that are damaged."""
        return snapshots(self.folder).lost

    def of(self, run: Run, time: int, batch: int = 1) -> Model:
        """A model of so many sequences of so many tokens; what it holds is written before it is used."""
        if self._model is None or (self._model.batch, self._model.time) != (batch, time):
            check_size_of(run)
            spec = run.spec()
            self._model = None  # the memory of the one before is free
            self._model = replace(spec, batch=batch, seq_len=time, optimizer=None).model()
        return self._model

    def at(self, run: Run, step: int, time: int, batch: int = 1) -> Model:
        model = self.of(run, time, batch)
        kept = snapshots(self.folder).weights
        if step in kept:
            self._write(model, kept[step])
            return model
        found = checkpoint.at(run.checkpoints, step)
        if found is not None:
            read_weights(found, model)
            return model
        if step != 0 or 0 not in kept_steps(run):
            raise TapelessError(f"{self.folder.name} keeps no weights of step {step}.")
        if self._first is None:
            self._first = Traced(run, standing_at(run, 0)).update.before
        self._write(model, self._first)
        return model

    def _write(self, model: Model, weights: dict[str, Array]) -> None:
        if {name: array.shape for name, array in weights.items()} != {n: a.shape for n, a in model.params.items()}:
            raise TapelessError(f"the weights that {self.folder.name} has kept are not those of its model.")
        for name, array in weights.items():
            model.write(name, array)
