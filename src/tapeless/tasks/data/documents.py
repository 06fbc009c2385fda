"""Documents by the million: which bytes of which file each is, in columns of numbers."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, overload

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import UnwritableError, perform, remove_folder, write_all
from tapeless.files.plain import open_plain
from tapeless.ops.contract import Array

PIECE = 1 << 17  # bytes read at once
DIGEST = 20  # bytes of a SHA-256 that tell texts apart


@dataclass(frozen=True, slots=True)
class Document:
    """The bytes from `start` to `stop` of a file, in UTF-8. `complete` says that the text ends there, and is not cut.

    Text that had to be written out to be UTF-8 also knows the file that it came from, of a row there the line that it
    begins in, and where its first byte was written.
    """

    path: Path
    start: int
    stop: int
    complete: bool = True
    origin: Path | None = None
    line: int = 0
    base: int = 0

    @property
    def size(self) -> int:
        return self.stop - self.start

    def place(self) -> dict[str, Any]:
        """Where a user finds it: file, line of a row, and bytes of the text that is there."""
        line = {"line": self.line} if self.line else {}
        return {"file": str(self.origin or self.path), **line} | {
            "start": self.start - self.base,
            "stop": self.stop - self.base,
        }


class Documents(Sequence[Document]):
    """Documents one after the other, forty bytes each."""

    def __init__(self) -> None:
        self._paths: dict[Path | None, int] = {None: 0}
        self._listed: list[Path | None] = [None]
        self._columns = {name: array("q") for name in ("path", "start", "stop", "origin", "line")}

    def append(self, document: Document) -> None:
        values = (self._number(document.path), document.start, document.stop)
        for column, value in zip(
            self._columns.values(), (*values, self._number(document.origin), document.line), strict=True
        ):
            column.append(value)

    def cut(self, count: int) -> None:
        """Take back all but the first `count`."""
        for column in self._columns.values():
            del column[count:]

    def _number(self, path: Path | None) -> int:
        number = self._paths.setdefault(path, len(self._listed))
        if number == len(self._listed):
            self._listed.append(path)
        return number

    def __len__(self) -> int:
        return len(self._columns["path"])

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        if isinstance(index, slice):
            return DocumentSubset(self, np.arange(len(self))[index])
        path, start, stop, origin, line = (column[index] for column in self._columns.values())
        where = self._listed[path]
        assert where is not None  # None stands for no origin
        source = self._listed[origin]
        return Document(where, start, stop, True, source, line, base=0 if source is None else start)


class DocumentSubset(Sequence[Document]):
    """Some of them, by their numbers."""

    def __init__(self, documents: Sequence[Document], numbers: Array) -> None:
        self._documents, self._numbers = documents, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        if isinstance(index, slice):
            return DocumentSubset(self._documents, self._numbers[index])
        return self._documents[int(self._numbers[index])]


def sizes(documents: Sequence[Document]) -> Array:
    return np.fromiter((document.size for document in documents), np.int64, len(documents))


def same_texts(documents: Sequence[Document]) -> Array:
    """For each document the number of its text, from 0 in the order in which texts appear. Only what has the size of
    another is read."""
    lengths = sizes(documents)
    values, counts = np.unique(lengths, return_counts=True)
    shared = counts[np.searchsorted(values, lengths)] > 1
    # A dictionary of digests would take several times as much memory as all else that is known of a document.
    keys = np.empty(len(documents), f"S{DIGEST}")
    with DocumentReader() as reader:
        for index, document in enumerate(documents):
            keys[index] = reader.digest(document) if shared[index] else b"alone %d" % index
    _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[groups]


class DocumentReader:
    """Reads documents; the file of the last one stays open, as the next is likely to lie in it too."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> DocumentReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def at(self, document: Document) -> BinaryIO:
        if self._file is None or self._path != document.path:
            self.__exit__()
            self._path, self._file = document.path, opened(document.path)
        self._file.seek(document.start)
        return self._file

    def blocks(self, document: Document) -> Iterator[bytes]:
        file, left = self.at(document), document.size
        while left:
            block = read(file, document.path, min(PIECE, left))
            if not block:
                raise TapelessError(f"{document.path} became shorter while it was read: run again.")
            left -= len(block)
            yield block

    def digest(self, document: Document) -> bytes:
        digest = hashlib.sha256()
        for block in self.blocks(document):
            digest.update(block)
        return digest.digest()[:DIGEST]


class Spool:
    """A file for text that is written out as UTF-8 to be read again: as large as what it came from unpacks to, and
    removed in the end."""

    def __init__(self, near: Path | None = None) -> None:
        """`near`: a place on the disk that has room for it; it, or what is above it, is there."""
        self._near, self._pending, self.size = near, bytearray(), 0
        self._place: tuple[Path, int] | None = None
        self._remove: Callable[[], Any] = lambda: None

    @property
    def path(self) -> Path:
        return self._opened()[0]

    def write(self, text: bytes) -> None:
        self._pending += text
        self.size += len(text)
        if len(self._pending) >= PIECE:
            self.flush()

    def flush(self) -> None:
        path, descriptor = self._opened()
        with _written_to(path):
            write_all(descriptor, memoryview(bytes(self._pending)))
        self._pending.clear()

    def cut(self, size: int) -> None:
        """Take back all but the first `size` bytes."""
        self.flush()
        path, descriptor = self._opened()
        with _written_to(path):
            perform(os.ftruncate, descriptor, size)
            perform(os.lseek, descriptor, size, os.SEEK_SET)
        self.size = size

    def close(self) -> None:
        self._remove()

    def _opened(self) -> tuple[Path, int]:
        if self._place is None:
            near = self._near and next(folder for folder in (self._near, *self._near.parents) if folder.is_dir())
            with _written_to(near or Path(tempfile.gettempdir())):
                folder = Path(perform(tempfile.mkdtemp, prefix=".tapeless-", dir=near))
                self._remove = weakref.finalize(self, remove_folder, folder)
                descriptor = perform(os.open, folder / "text", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                self._remove = weakref.finalize(self, _discard, descriptor, self._remove)
            self._place = folder / "text", descriptor
        return self._place


def _discard(descriptor: int, remove: Callable[[], Any]) -> None:
    os.close(descriptor)
    remove()


@contextmanager
def _written_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}.") from None


def opened(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError as error:
        unreadable(path, error)


def read(file: BinaryIO, path: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        unreadable(path, error)


def unreadable(path: Path, error: OSError) -> NoReturn:
    raise TapelessError(f"cannot read {error.filename or path}: {error.strerror}.") from None
