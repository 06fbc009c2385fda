"""A run: a folder with the resolved configuration, the tokenizer, the metrics and the checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.backends.backend import Backend, backend_named, planner_named, precision_for
from tapeless.backends.planning import laid_out
from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.lock import Lock, hold, was_left
from tapeless.files.plain import read_toml
from tapeless.model import DEFAULT_BACKEND, Model
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset, checked_class_weights
from tapeless.models.learning import check_trained
from tapeless.program.call import Program
from tapeless.program.precision import Precision
from tapeless.train import checkpoint
from tapeless.train.base import all_weights
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.metrics import FILE as METRICS
from tapeless.train.settings import Request, as_toml, request_from

CONFIGURATION, CHECKPOINTS = "config.toml", "checkpoints"
NEVER_BEGAN = "is what a training left that was killed before it began: remove it and start again."


@dataclass(frozen=True)
class NumberedFolder:
    """The first free of `name-001`, `name-002`, …: which one, the making of it decides, as others may make one too."""

    parent: Path
    name: str

    def candidates(self) -> Iterator[Path]:
        return (self.parent / f"{self.name}-{number:03}" for number in count(1))


@dataclass(frozen=True)
class Recipe:
    """What a run's training step is made from."""

    preset: Preset
    batch: int
    time: int
    optimizer: Optimizer
    backend: str
    precision: Precision
    class_weights: tuple[float, ...] | None


@dataclass(frozen=True)
class Run:
    folder: Path
    lock: Lock | None = field(default=None, compare=False, repr=False)  # held as long as somebody has this Run

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def data(self) -> Path:
        """The tokens that were made from the run's text."""
        return self.folder / "data"

    def request(self) -> Request:
        return _read(self.folder)[0]

    def preset(self) -> Preset:
        return _read(self.folder)[1]

    def window(self) -> int:
        """The positions it was trained on. Of any beyond them the model knows nothing, so sampling slides here."""
        request, preset = _read(self.folder)
        return min(request.settings.time or preset.architecture.context, preset.architecture.context)

    def program(self) -> Program:
        """The training step, call by call, as the run was given it; nothing is allocated for it."""
        made, weighted = self.recipe(), self.request().class_weights is not None
        master = made.precision.has_master
        preset = laid_out(made.preset, planner_named(made.backend), made.precision)
        return transformer.training(preset, made.batch, made.time, made.optimizer, master=master, weighted=weighted)

    def recipe(self) -> Recipe:
        request, preset = _read(self.folder)
        settings = request.settings
        return Recipe(
            preset,
            settings.batch or 1,
            settings.time or preset.architecture.context,
            settings.optimizer(preset.optimizer),
            settings.backend,
            precision_for(planner_named(settings.backend), settings.precision, preset.frozen_precision),
            request.class_weights,
        )

    def tokenizer_spec(self) -> str | Path | None:
        """What `load_tokenizer` takes; None where the run knows no text."""
        kind = self.request().settings.tokenizer
        return {"none": None, "bytes": "bytes"}.get(kind, self.folder / "tokenizer.json")

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """To go on from; None where there is none, and none was damaged."""
        if not checkpoint.steps(self.checkpoints):
            return None, []
        return self.checkpoint("newest")

    def checkpoint(self, which: str | int) -> tuple[Checkpoint, list[str]]:
        """`best`, `newest` or the number of a step, with a message for every damaged one that had to be passed over."""
        if isinstance(which, str) and which.isascii() and which.isdigit():
            which = int(which)
        if isinstance(which, int | np.integer) and not isinstance(which, bool):
            return self._checkpoint_at(int(which)), []
        if which not in ("best", "newest"):
            raise TapelessError(f"checkpoint must be 'best', 'newest' or the number of a step, not {which!r}.")
        found, messages = (checkpoint.best if which == "best" else checkpoint.newest)(self.checkpoints)
        if found is None:
            said = f" ({' '.join(messages)})" if messages else ""
            raise TapelessError(f"{self.folder} holds no whole checkpoint yet{said}: train it first.")
        return found, messages

    def _checkpoint_at(self, step: int) -> Checkpoint:
        found = checkpoint.at(self.checkpoints, step)
        if found is None:
            there = checkpoint.steps(self.checkpoints)
            shown = [str(each) for each in there] if len(there) < 12 else [*map(str, there[:5]), "…", str(there[-1])]
            kept = f"those it has are of {', '.join(shown)}" if there else "it has none yet"
            raise TapelessError(f"{self.folder} has no checkpoint of step {step}: {kept}.")
        return found

    def model(self, which: str | int, **how: Any) -> tuple[Model, Checkpoint, list[str]]:
        """A model with the weights of a checkpoint, for reading out or sampling; unless an `optimizer` is asked for, it
        cannot be trained further."""
        found, messages = self.checkpoint(which)
        request, preset = _read(self.folder)
        trainable = how.get("optimizer") is not None
        model = Model(
            preset if trainable else _to_read(preset, how.get("backend", DEFAULT_BACKEND), how.get("precision")),
            class_weights=request.class_weights,
            **{"optimizer": None, **how},
        )
        read_weights(found, model)
        return model, found, messages


def _to_read(preset: Preset, backend: str | Backend, precision: str | None) -> Preset:
    """A slip in what is frozen is a training's to refuse: weights that are only read are as they are. So is a type of
    frozen matrices that this backend or precision has no products of: they are read in the one that it has."""
    try:
        check_trained(preset, transformer.evaluation(preset, 1, 1).weights)
    except TapelessError:
        return preset.override(frozen=(), train=(), frozen_precision=None)
    try:
        precision_for(backend_named(backend), precision, preset.frozen_precision)
    except TapelessError:
        return preset.override(frozen_precision=None)
    return preset


def read_weights(found: Checkpoint, model: Model) -> None:
    """Into a model of any type: what was trained in float64 can be sampled in float32."""
    stored = all_weights(found)
    if {name: array.shape for name, array in stored.items()} != {n: tuple(a.shape) for n, a in model.params.items()}:
        raise TapelessError(f"the weights in {found.path} do not belong to this model: names or shapes differ.")
    for name, array in stored.items():
        model.write(name, array)


@contextmanager
def making(folder: Path | NumberedFolder) -> Iterator[Run]:
    """A new folder, locked; one that is there already is never written into. Of a run that never began nothing stays
    behind."""
    missing = [parent for parent in (folder.parent, *folder.parent.parents) if not parent.exists()]
    made = _made(folder)
    try:
        yield Run(made, hold(made))
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def _made(wanted: Path | NumberedFolder) -> Path:
    for folder in wanted.candidates() if isinstance(wanted, NumberedFolder) else [wanted]:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise TapelessError(f"cannot make the run folder {folder}: {error.strerror}.") from None
        return folder
    if not (folder / CONFIGURATION).exists() and was_left(folder):
        raise TapelessError(f"{folder} {NEVER_BEGAN}")
    raise TapelessError(f"{folder} exists already: choose another folder with --out, or --resume it.")


def write_configuration(made: Run, request: Request, preset: Preset) -> None:
    write_whole(made.folder / CONFIGURATION, as_toml(request, preset).encode())


def open_run(folder: Path, locked: bool = False) -> Run:
    """A run, to be read; to be written into it must be locked."""
    if not (folder / CONFIGURATION).is_file():
        if was_left(folder):
            raise TapelessError(f"{folder} {NEVER_BEGAN}")
        what = "is not a run: it is no folder" if os.path.lexists(folder) else "is not there"
        what = "is not a run: it has no config.toml" if folder.is_dir() else what
        raise TapelessError(
            f"{folder} {what}. Runs are the folders that `tapeless train` makes, such as runs/NAME-001."
        )
    _read(folder)
    if locked:
        _check_places(folder)
    return Run(folder, hold(folder) if locked else None)


def _check_places(folder: Path) -> None:
    """Before a training: what stands in the way of its records would else be found at its first checkpoint."""
    for name, kind, fits in ((CHECKPOINTS, "folder", Path.is_dir), (METRICS, "plain file", Path.is_file)):
        path = folder / name
        if os.path.lexists(path) and not fits(path):
            raise TapelessError(f"{path} is no {kind}, so this run could not be recorded: move it out of the way.")


def _read(folder: Path) -> tuple[Request, Preset]:
    path = folder / CONFIGURATION
    document = read_toml(path)
    if "preset" not in document:
        raise TapelessError(f"{path} names no preset, so it is not what the run was given: put it back as it was.")
    request = request_from(document, str(path))
    try:
        preset = request.resolved()
        checked_class_weights(preset.architecture, request.class_weights)
        return request, preset
    except TapelessError as error:
        raise TapelessError(f"{path}: {error}") from None
