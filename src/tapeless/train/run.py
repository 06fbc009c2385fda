"""A run: a folder with the configuration, the metrics as JSON lines, and at the end the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.train.loop import Settings


class Run:
    def __init__(self, folder: Path, model: Model, settings: Settings) -> None:
        """Make the folder; one that is there already is never written into."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise TapelessError(f"{folder} exists already: choose another folder with --out.") from None
        except OSError as error:
            raise TapelessError(f"cannot make the run folder {folder}: {error.strerror}.") from None
        self.folder = folder
        configuration = {
            "model": asdict(model.config),
            "backend": model.backend,
            "dtype": model.dtype,
            "optimizer": asdict(model.optimizer) if model.optimizer else None,
            "training": asdict(settings),
        }
        _write_whole(folder / "run.json", json.dumps(configuration, indent=2).encode() + b"\n")

    def record(self, metrics: Mapping[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def save_weights(self, model: Model) -> None:
        from safetensors.numpy import save

        _write_whole(self.folder / "weights.safetensors", save(dict(model.params)))


def new_folder(parent: Path, name: str) -> Path:
    """The first free of `name-001`, `name-002`, …"""
    number = 1
    while (parent / f"{name}-{number:03}").exists():
        number += 1
    return parent / f"{name}-{number:03}"


def _write_whole(path: Path, content: bytes) -> None:
    """Beside, flushed, then renamed: a reader sees the whole file or none."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
