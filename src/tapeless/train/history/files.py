"""How a history reaches the disk: a file of JSON lines that grows, and folders with a safetensors file per step.

Which steps they hold follows from the steps that were made and from nothing else, so that a run that was killed and
resumed has the same files as one that was not. Thinning is therefore decided when a step is added, not when it is
written, and by the number of the step: what a process that was killed later has thinned is what the resumed run would
thin, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tapeless.files.disk import UnwritableError, make_folder, perform, rename, replace_file, write_whole
from tapeless.files.growing import Growing
from tapeless.files.safetensors import write_safetensors
from tapeless.ops.contract import Array

NAME = re.compile(r"step-(\d{8,16})\.safetensors", re.ASCII)


class Lines:
    """A file of JSON lines: a head, then one line per step. The lines are kept in memory, too: they are few megabytes,
    and thinning needs them."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, Growing(path)
        self._head = b""  # as the file has it; b"": the file is to be replaced
        self._lines: dict[int, bytes] = {}
        self._written = 0  # lines of these that are in the file
        self.size = 0  # bytes of all lines

    @property
    def steps(self) -> list[int]:
        return [*self._lines]

    def add(self, step: int, line: bytes) -> None:
        self._lines[step] = line
        self.size += len(line)

    def insert(self, lines: Mapping[int, bytes]) -> None:
        """Each where its step belongs."""
        self._hold(dict(sorted({**self._lines, **lines}.items())))

    def thin(self, stays: Callable[[int], bool]) -> None:
        """The lines of all other steps go, from the file when it is written next."""
        self._hold({step: line for step, line in self._lines.items() if stays(step)})

    def _hold(self, lines: dict[int, bytes]) -> None:
        self._head, self._written = b"", 0
        self._lines, self.size = lines, sum(map(len, lines.values()))

    def write(self, head: bytes) -> None:
        """What was added. If it does not reach the disk it is kept, and can be tried again."""
        fresh = [*self._lines][self._written :]
        if not fresh:
            return
        content = b"".join(self._lines[step] for step in fresh)
        try:
            if head == self._head:
                self._file.add(content)
            else:
                replace_file(self.path, head + b"".join(self._lines.values()))
        except OSError as error:
            raise UnwritableError(f"cannot record step {fresh[0]} in {self.path}: {error.strerror}.") from None
        self._head, self._written = head, len(self._lines)

    def sync(self) -> None:
        """What was written survives a power cut from here on."""
        try:
            self._file.sync()
        except OSError as error:
            raise UnwritableError(f"cannot write {self.path}: {error.strerror}.") from None

    def go_on(self, head: bytes, lines: dict[int, bytes]) -> None:
        """Hold these lines and no others."""
        write_whole(self.path, head + b"".join(lines.values()))
        self._hold(lines)
        self._head, self._written = head, len(lines)


def files_in(folder: Path) -> dict[int, Path]:
    """The files of a folder by step, in order."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return {}
    found = {int(match[1]): folder / match[0] for match in map(NAME.fullmatch, names) if match}
    return dict(sorted(found.items()))


class StepFiles:
    """A folder with a safetensors file for each of some steps, `step-00000100.safetensors`, there whole or not at
    all."""

    def __init__(self, folder: Path, what: str) -> None:
        """`what`: the arrays, as the sentence has them that says that they could not be written."""
        self.folder, self._what = folder, what
        self._waiting: dict[int, tuple[Mapping[str, Array], Mapping[str, str]]] = {}  # not on the disk yet
        self._stored: set[int] = set()
        self._unwanted: set[int] = set()  # of those on the disk

    @property
    def steps(self) -> list[int]:
        return sorted({*self._waiting, *self._stored - self._unwanted})

    def add(self, step: int, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
        """The arrays are not copied."""
        self._waiting[step] = arrays, metadata or {}
        self._unwanted.discard(step)

    def thin(self, stays: Callable[[int], bool]) -> None:
        """All other steps go, from the disk when it is written next."""
        self._waiting = {step: arrays for step, arrays in self._waiting.items() if stays(step)}
        self._unwanted |= {step for step in self._stored if not stays(step)}

    def write(self) -> None:
        """What was added. If it does not reach the disk it is kept, and can be tried again."""
        for step in self._unwanted:
            _remove(self._path(step))
        self._stored -= self._unwanted
        self._unwanted.clear()
        for step in sorted(self._waiting):
            self._write_one(step, *self._waiting[step])
            del self._waiting[step]
            self._stored.add(step)

    def _write_one(self, step: int, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
        path = self._path(step)
        beside = path.with_name(path.name + ".part")
        try:
            make_folder(self.folder)
            write_safetensors(beside, arrays, metadata=metadata)
            rename(beside, path)
        except OSError as error:
            _remove(beside)
            raise UnwritableError(f"cannot keep {self._what} of step {step:,} in {path}: {error.strerror}.") from None

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}.safetensors"

    def cut_after(self, step: int) -> None:
        """Go on with those that are there, without what lies beyond a step: it is made again, or was not meant to be.
        What a kill left half-written goes, too."""
        found = files_in(self.folder)
        for path in (*(path for each, path in found.items() if each > step), *self.folder.glob("*.part")):
            _remove(path)
        self._stored = {each for each in found if each <= step}


def _remove(path: Path) -> None:
    with suppress(OSError):
        perform(os.unlink, path)
