"""What the lessons are taught with: the first run that learned the operations, or the teaching model untrained."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any

from tapeless.errors import TapelessError
from tapeless.explorer.apart import Apart
from tapeless.explorer.lesson import exercises, lesson
from tapeless.explorer.pupil import Pupil
from tapeless.explorer.source import signature
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS

MOST_MOMENTS = 1000  # and planted bugs
OWN_TEXTS = "TAPELESS_LESSONS"  # the environment variable that names a folder of changed or translated lessons
LARGEST_TEXT = 200_000  # bytes


def texts() -> dict[str, dict[str, str]]:
    """The lessons' texts by language and chapter: files `LANGUAGE/CHAPTER.md`, ours and then those of a folder that the
    environment names. A chapter that a language does not have is shown in English."""
    ours = Path(str(resources.files("tapeless.explorer").joinpath("lessons")))
    own = [Path(os.environ[OWN_TEXTS])] if os.environ.get(OWN_TEXTS) else []
    found: dict[str, dict[str, str]] = {}
    for folder in (ours, *own):
        if not folder.is_dir():
            raise TapelessError(
                f"{OWN_TEXTS} names {folder}, which is no folder: give one that holds LANGUAGE/CHAPTER.md."
            )
        for path in sorted(folder.glob("*/*.md")):
            content = path.read_bytes()
            if len(content) > LARGEST_TEXT:
                raise TapelessError(f"{path} is {len(content):,} bytes, too long for a lesson.")
            found.setdefault(path.parent.name, {})[path.stem] = content.decode("utf-8", "replace")
    return found


class School:
    def __init__(self, folders: list[Path]) -> None:
        self._folders, self._apart = folders, Apart()
        self._lock = Lock()  # requests come on several threads, and a pupil is one model
        self._pupil: tuple[Any, Path | None, Pupil] | None = None

    def lesson(self, at: int, asked: str) -> dict[str, Any]:
        with self._lock:
            return lesson(self._chosen()[1], at, asked)

    def texts(self) -> dict[str, Any]:
        return texts()

    def exercises(self) -> dict[str, Any]:
        return exercises()

    def landscape(self) -> dict[str, Any]:
        with self._lock:
            folder, pupil = self._chosen()
        if folder is None or len(pupil.steps) < 3:
            raise TapelessError("there is no path to look at yet: train the teaching model with `tapeless train`.")
        return self._apart.ask("landscape", str(folder.resolve()), signature(folder / SNAPSHOTS))

    def pathologies(self) -> dict[str, Any]:
        return self._apart.ask("pathologies")

    def planted(self, number: int) -> dict[str, Any]:
        return self._apart.ask("planted", str(number))

    def _chosen(self) -> tuple[Path | None, Pupil]:
        state = tuple(signature(folder / SNAPSHOTS) for folder in self._folders)
        if self._pupil is None or self._pupil[0] != state:
            self._pupil = state, *self._first()
        return self._pupil[1:]

    def _first(self) -> tuple[Path | None, Pupil]:
        for folder in self._folders:
            try:
                pupil = Pupil.of(folder)
            except TapelessError:
                continue
            if "head.weight" in pupil.model.params and pupil.model.config.loss == "cross_entropy":
                return folder, pupil
        return None, Pupil.untrained()
