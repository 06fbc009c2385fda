"""Documents by the million: their text in one file, and of each in columns of numbers where it stands and came from."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import UnwritableError, perform, remove_folder, write_all
from tapeless.files.plain import open_plain
from tapeless.ops.contract import Array

PIECE = 1 << 17  # bytes read at once
DIGEST = 20  # bytes of a SHA-256 that tell texts apart
# Between two characters that are not spaces, tokenizers that split like GPT-2's begin a new token behind a line end.
# A piece that ends there has the ids it has within the whole.
CLEAN_LINE_END = re.compile(rb"\S\n(?=\S)")


class Documents:
    """Texts as UTF-8, one after the other in a file that is removed in the end, so that memory stays small. `near`: a
    place on the disk that has room for it; it, or what is above it, is there."""

    def __init__(self, near: Path | None = None) -> None:
        self._near, self._pending, self._written = near, bytearray(), 0
        self._place: tuple[Path, int] | None = None
        self._remove: Callable[[], Any] = lambda: None
        self._files: list[Path] = []
        self._starts, self._stops, self._from, self._lines = (array("q") for _ in range(4))
        self._cut = False  # whether there was one, which is two now

    def __len__(self) -> int:
        return len(self._stops)

    @property
    def sizes(self) -> Array:
        return np.array(self._stops, np.int64) - np.array(self._starts, np.int64)

    def write(self, text: bytes) -> None:
        self._pending += text
        if len(self._pending) >= PIECE:
            self.flush()

    def end(self, file: Path, line: int = 0) -> bool:
        """What was written since the last one is a document, unless it is nothing. `line`: where its row begins."""
        start, stop = self._stops[-1] if self._stops else 0, self._written + len(self._pending)
        if start == stop:
            return False
        if self._files[-1:] != [file]:
            self._files.append(file)
        values = (start, stop, len(self._files) - 1, line)
        for column, value in zip((self._starts, self._stops, self._from, self._lines), values, strict=True):
            column.append(value)
        return True

    def take_back(self, count: int) -> None:
        """Keep the first `count`, and nothing that was written behind them."""
        self.keep(np.arange(count))
        self.flush()
        self._written = self._stops[-1] if self._stops else 0
        path, descriptor = self._opened()
        with _written_to(path):
            perform(os.ftruncate, descriptor, self._written)
            perform(os.lseek, descriptor, self._written, os.SEEK_SET)

    def keep(self, numbers: Array) -> None:
        """The others are no documents any more."""
        for column in (self._starts, self._stops, self._from, self._lines):
            column[:] = array("q", [column[number] for number in numbers.tolist()])

    def flush(self) -> None:
        path, descriptor = self._opened()
        with _written_to(path):
            write_all(descriptor, memoryview(bytes(self._pending)))
        self._written += len(self._pending)
        self._pending.clear()

    def close(self) -> None:
        self._remove()

    def _opened(self) -> tuple[Path, int]:
        if self._place is None:
            near = self._near and next(folder for folder in (self._near, *self._near.parents) if folder.is_dir())
            with _written_to(near or Path(tempfile.gettempdir())):
                folder = Path(perform(tempfile.mkdtemp, prefix=".tapeless-", dir=near))
                self._remove = weakref.finalize(self, remove_folder, folder)
                descriptor = perform(os.open, folder / "text", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                self._remove = weakref.finalize(self, _discard, descriptor, self._remove)
            self._place = folder / "text", descriptor
        return self._place

    def place(self, number: int) -> dict[str, Any]:
        """Where a user finds it: file, line of a row, and bytes of the text that is there."""
        line = {"line": self._lines[number]} if self._lines[number] else {}
        base = self._starts[0 if self._cut else number]
        span = {"start": self._starts[number] - base, "stop": self._stops[number] - base}
        return {"file": str(self._files[self._from[number]]), **line, **span}

    def is_cut_off(self, number: int) -> bool:
        """Whether the text goes on in the next document."""
        return self._cut and number == 0

    def blocks(self, number: int) -> Iterator[bytes]:
        _, descriptor = self._opened()
        for start in range(self._starts[number], self._stops[number], PIECE):
            yield os.pread(descriptor, min(PIECE, self._stops[number] - start), start)

    def pieces(self, number: int) -> Iterator[bytes]:
        """A document in order, cut at line ends where there are any. Joined they are the document."""
        rest, left = b"", self._stops[number] - self._starts[number]
        for block in self.blocks(number):
            left -= len(block)
            rest += block
            cut = _cut(rest) if left else len(rest)
            yield rest[:cut]
            rest = rest[cut:]

    def every_piece(self, numbers: Iterable[int]) -> Iterator[tuple[bytes, bool]]:
        """The pieces of one document after the other, each with whether a text ends with it."""
        for number in numbers:
            left = self._stops[number] - self._starts[number]
            for piece in self.pieces(number):
                left -= len(piece)
                yield piece, not left and not self.is_cut_off(number)

    def same_texts(self) -> Array:
        """For each document the number of its text, from 0 in the order in which texts appear. Only what has the size
        of another is read."""
        sizes = self.sizes
        values, counts = np.unique(sizes, return_counts=True)
        shared = counts[np.searchsorted(values, sizes)] > 1
        # A dictionary of digests would take several times as much memory as all else that is known of a document.
        keys = np.empty(len(self), f"S{DIGEST}")
        for number in range(len(self)):
            keys[number] = self._digest(number) if shared[number] else b"alone %d" % number
        _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.empty(len(first), np.int64)
        numbers[np.argsort(first)] = np.arange(len(first))
        return numbers[groups]

    def _digest(self, number: int) -> bytes:
        digest = hashlib.sha256()
        for block in self.blocks(number):
            digest.update(block)
        return digest.digest()[:DIGEST]

    def cut_in_two(self, share: float) -> None:
        """The only document as two, cut at a line end near `share` of it: no line, or at least no word, is on both
        sides."""
        start, stop, file = self._starts[0], self._stops[0], self._files[0]
        if stop - start < 2:
            raise TapelessError(f"{file} holds a single byte of text, so nothing can be held out: give more.")
        wanted = min(max(start + round((stop - start) * share), start + 1), stop - 1)
        first = max(start, wanted - PIECE)
        around = os.pread(self._opened()[1], min(stop, wanted + PIECE) - first, first)
        cut = first + _nearest_cut(around, wanted - first, file)
        self._starts.append(cut)
        self._stops[0] = cut
        self._stops.append(stop)
        self._from.append(self._from[0])
        self._lines.append(self._lines[0])
        self._cut = True


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


def unreadable(path: Path, error: OSError) -> NoReturn:
    raise TapelessError(f"cannot read {error.filename or path}: {error.strerror}.") from None


def _cut(block: bytes) -> int:
    """Where a piece may end, in the second half of `block`: what follows is read on."""
    half = len(block) // 2
    if found := CLEAN_LINE_END.search(block, half):
        return found.end()
    line = block.rfind(b"\n", half) + 1
    return line or max(block.rfind(b" ", half), 0) or _character_start(block, len(block) - 1)


def _nearest_cut(block: bytes, wanted: int, path: Path) -> int:
    """The line end nearest to `wanted` with text on both sides, else the nearest space, else a character's start."""
    for mark in (b"\n", b" "):
        # The cut stands behind the mark and before the block's last byte, so that both sides hold something.
        cuts = [block.rfind(mark, 0, wanted) + 1, block.find(mark, wanted, len(block) - 1) + 1]
        if any(cuts):
            return min((cut for cut in cuts if cut), key=lambda cut: abs(cut - wanted))
    cut = _character_start(block, wanted)
    if not cut:
        cut = next((place for place in range(1, len(block)) if block[place] & 0xC0 != 0x80), 0)
    if not cut:
        raise TapelessError(f"{path} holds a single character, so nothing can be held out: give more.")
    return cut


def _character_start(block: bytes, place: int) -> int:
    """`place`, or up to three bytes before it, where a UTF-8 character begins."""
    lowest = max(place - 3, 0)
    while place > lowest and block[place] & 0xC0 == 0x80:
        place -= 1
    return place
