"""A run: a folder with the resolved configuration, the tokenizer, the metrics and the checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files import read_toml
from tapeless.model import Model
from tapeless.models.config import Config
from tapeless.models.presets import preset
from tapeless.train import checkpoint
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.disk import write_whole
from tapeless.train.settings import Request, as_toml, request_from

CONFIGURATION = "config.toml"


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def data(self) -> Path:
        """The tokens that were made from the run's text."""
        return self.folder / "data"

    def request(self) -> Request:
        return _read(self.folder)[0]

    def config(self) -> Config:
        return _read(self.folder)[1]

    def tokenizer_spec(self) -> str | Path | None:
        """What `load_tokenizer` takes; None where the run knows no text."""
        kind = self.request().settings.tokenizer
        return {"none": None, "bytes": "bytes"}.get(kind, self.folder / "tokenizer.json")

    def checkpoint(self, which: str) -> tuple[Checkpoint, list[str]]:
        """`best` or `newest`, with a message for every damaged one that had to be passed over."""
        found, messages = (checkpoint.best if which == "best" else checkpoint.newest)(self.checkpoints)
        if found is None:
            said = f" ({' '.join(messages)})" if messages else ""
            raise TapelessError(f"{self.folder} holds no whole checkpoint yet{said}: train it first.")
        return found, messages

    def model(self, which: str, **how: Any) -> tuple[Model, Checkpoint, list[str]]:
        """A model with the weights of a checkpoint, for reading out or sampling; it cannot be trained further."""
        found, messages = self.checkpoint(which)
        model = Model(self.config(), optimizer=None, **how)
        read_weights(found, model)
        return model, found, messages


def read_weights(found: Checkpoint, model: Model) -> None:
    """Into a model of any type: what was trained in float64 can be sampled in float32."""
    stored = found.tensors("weights")
    if {name: array.shape for name, array in stored.items()} != {n: a.shape for n, a in model.params.items()}:
        raise TapelessError(f"the weights in {found.path} do not belong to this model: names or shapes differ.")
    for name, array in stored.items():
        model.params[name][...] = array


@contextmanager
def making(folder: Path) -> Iterator[Run]:
    """A new folder; one that is there already is never written into. Of a run that never began nothing stays behind."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise TapelessError(f"{folder} exists already: choose another folder with --out, or --resume it.") from None
    except OSError as error:
        raise TapelessError(f"cannot make the run folder {folder}: {error.strerror}.") from None
    try:
        yield Run(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def write_configuration(made: Run, request: Request, config: Config) -> None:
    write_whole(made.folder / CONFIGURATION, as_toml(request, config).encode())


def open_run(folder: Path) -> Run:
    if not (folder / CONFIGURATION).is_file():
        what = "is not a run: it has no config.toml" if folder.is_dir() else "is not there"
        raise TapelessError(
            f"{folder} {what}. Runs are the folders that `tapeless train` makes, such as runs/NAME-001."
        )
    _read(folder)
    return Run(folder)


def _read(folder: Path) -> tuple[Request, Config]:
    path = folder / CONFIGURATION
    document = read_toml(path)
    if "preset" not in document:
        raise TapelessError(f"{path} names no preset, so it is not what the run was given: put it back as it was.")
    request = request_from(document, str(path))
    try:
        return request, preset(request.preset).override(**request.model)
    except TapelessError as error:
        raise TapelessError(f"{path}: {error}") from None


def new_folder(parent: Path, name: str) -> Path:
    """The first free of `name-001`, `name-002`, …"""
    number = 1
    while (parent / f"{name}-{number:03}").exists():
        number += 1
    return parent / f"{name}-{number:03}"
