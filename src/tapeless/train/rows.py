"""A file of float32 rows by step behind one line of JSON, as records and moments are: it grows while a run trains, it
is thinned when it is full, and a resumed run goes on with it.

Which rows a file holds follows from the steps that were made and from nothing else, so that a run that was killed and
resumed has the same file as one that was not. Thinning is therefore decided when a row is added, not when it is
written, and by the number of the step: a file that was thinned by a process that was killed later holds what the
resumed run would thin it to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import EIO
from pathlib import Path

import numpy as np

from tapeless.files.disk import UnwritableError, write_whole
from tapeless.files.growing import Growing
from tapeless.files.plain import read_plain
from tapeless.ops.contract import Array


class Rows:
    """Of a training that goes on in this process."""

    def __init__(self, path: Path, failing: str) -> None:
        """`failing`: how the sentence begins where they do not reach the disk, with {step} and {path}."""
        self.path, self._file, self._failing = path, Growing(path), failing
        self._head = b""  # as the file has it
        self._places: dict[int, int] = {}  # by step, which row of the file it is; of those that stay
        self._stored = 0  # rows of the file
        self._waiting: dict[int, Array] = {}  # by step, that are not in it yet

    @property
    def steps(self) -> list[int]:
        return [*self._places, *self._waiting]

    def add(self, step: int, row: Array) -> None:
        self._waiting[step] = row

    def thin(self, stays: Callable[[int], bool]) -> None:
        """The rows of all other steps go, from the file when it is written next."""
        self._places = {step: place for step, place in self._places.items() if stays(step)}
        self._waiting = {step: row for step, row in self._waiting.items() if stays(step)}

    def write(self, head: bytes) -> None:
        """What was added. Where it does not reach the disk it is kept, and can be tried again."""
        if not self._waiting:
            return
        rows = np.stack([*self._waiting.values()])
        try:
            if head == self._head and len(self._places) == self._stored:
                self._file.add(rows.tobytes())
            else:
                write_whole(self.path, head + self._kept(rows.shape[1]).tobytes() + rows.tobytes())
        except (OSError, UnwritableError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            failing = self._failing.format(step=next(iter(self._waiting)), path=self.path)
            raise UnwritableError(f"{failing}: {said}.") from None
        self._holds(head, self.steps)

    def _kept(self, width: int) -> Array:
        """The rows of the file that stay."""
        if not self._places:
            return np.empty((0, width), np.float32)
        content = read_plain(self.path)[len(self._head) :]
        if len(content) < 4 * width * self._stored:
            raise OSError(EIO, "it is shorter than it was written")
        rows = np.frombuffer(content, "<f4", width * self._stored).reshape(self._stored, width)
        return rows[[*self._places.values()]]

    def sync(self) -> None:
        """What was written survives a power cut from here on."""
        try:
            self._file.sync()
        except OSError as error:
            raise UnwritableError(f"cannot write {self.path}: {error.strerror}.") from None

    def go_on(self, head: bytes, steps: Sequence[int], rows: Array) -> None:
        """Hold these rows and no others."""
        write_whole(self.path, head + rows.tobytes())
        self._holds(head, steps)

    def _holds(self, head: bytes, steps: Sequence[int]) -> None:
        self._head, self._stored, self._waiting = head, len(steps), {}
        self._places = {step: place for place, step in enumerate(steps)}
