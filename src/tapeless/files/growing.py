"""A file that grows by whole pieces: metrics, and what TensorBoard reads. Of one that does not fit nothing stays."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG

from tapeless.files import disk


class Growing:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._torn_at: int | None = None  # where a piece begins that could be neither written nor taken back

    def add(self, piece: bytes) -> None:
        """All of it, or OSError and nothing of it; where even that fails, the next one cuts it off first."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # a pipe must not make us wait
        descriptor = disk.perform(os.open, self.path, flags, 0o666)
        try:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                raise OSError(EINVAL, "it is no regular file", str(self.path))
            if self._torn_at is not None:
                disk.perform(os.ftruncate, descriptor, self._torn_at)
            end = status.st_size if self._torn_at is None else self._torn_at
            self._torn_at = end
            try:
                disk.write_all(descriptor, memoryview(piece))
            except OSError:
                with suppress(OSError):
                    disk.perform(os.ftruncate, descriptor, end)
                    self._torn_at = None
                raise
            self._torn_at = None
        finally:
            disk.perform(os.close, descriptor)

    def sync(self) -> None:
        """What was added is on the disk when this returns; OSError where it cannot be."""
        try:
            descriptor = disk.perform(os.open, self.path, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:  # nothing was added yet
            return
        try:
            disk.perform(os.fsync, descriptor)
        finally:
            disk.perform(os.close, descriptor)
