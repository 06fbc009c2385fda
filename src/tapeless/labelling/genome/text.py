"""Text files of the field as they come: plain, gzip or bgzip, with any line ends, with or without a byte-order mark."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

from tapeless.errors import TapelessError
from tapeless.files.plain import open_plain

GZIP = b"\x1f\x8b"
OTHER_FORMATS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}

LONGEST_LINE = 1 << 20  # characters; a line of GFF3 has some hundred
# gzip shrinks a sequence to a fourth and an annotation to a tenth or twentieth. A file that grows a thousandfold, the
# most that gzip can do, is made to fill a memory.
UNSUSPICIOUS = 1 << 26  # bytes; repeats of a test genome may shrink well
LARGEST_GROWTH = 100


class _Unpacked(RawIOBase):
    """What is in a gzip file, as long as it grows like text does."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        self._path, self._packed = path, packed
        self._unpacking = gzip.GzipFile(fileobj=packed)
        self._made = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._unpacking.readinto(buffer)
        self._made += count
        if self._made > max(UNSUSPICIOUS, LARGEST_GROWTH * self._packed.tell()):
            raise TapelessError(
                f"{self._path} unpacks to more than {LARGEST_GROWTH} times its size, which no genome does: "
                f"if it is right all the same, unpack it first."
            )
        return count


def numbered_lines(path: Path, text: TextIO) -> Iterator[tuple[int, str]]:
    """The lines from 1 on, without their ends; one that has no end in sight is refused and not held."""
    number = 0
    while line := text.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith("\n"):
            raise TapelessError(f"{path}, line {number}: it is longer than {LONGEST_LINE:,} characters: is this GFF3?")
        yield number, line.rstrip("\n")


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The lines of a plain or gzip file; whatever goes wrong while they are read becomes one sentence."""
    try:
        with open_plain(path) as raw:
            begin = raw.read(8)
            raw.seek(0)
            for magic, name in OTHER_FORMATS.items():
                if begin.startswith(magic):
                    raise TapelessError(f"{path} is compressed with {name}: unpack it, or compress it with gzip.")
            stream = BufferedReader(_Unpacked(path, raw)) if begin.startswith(GZIP) else raw
            # Names are compared as text; a byte that is no UTF-8 matters only where it cannot be right anyway.
            with TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") as text:
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TapelessError(
            f"{path} is damaged: its gzip data is cut short or altered; fetch or make it again."
        ) from None
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror or error}.") from None
    except ValueError as error:  # a NUL in the name
        if "null" not in str(error):
            raise
        raise TapelessError(f"{str(path)!r} is no name of a file: choose another.") from None
