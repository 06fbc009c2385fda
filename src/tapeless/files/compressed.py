"""Compressed files as a stream of what is in them, a little at a time, as long as that grows like text does."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

from tapeless.errors import TapelessError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z"}
MAGIC = 8  # bytes that tell them apart
# Text shrinks to a fourth, an annotation or a log to a twentieth. A file that grows a thousandfold, the most that gzip
# can do, is made to fill a memory or a disk.
UNSUSPICIOUS = 1 << 26  # bytes; repeats in something small may shrink well
LARGEST_GROWTH = 100
AT_ONCE = 1 << 17  # bytes of text
# A zstd frame turns four bytes into 128 KiB at most, so that so many become 32 MiB.
ZSTD_AT_ONCE = 1 << 10


class ForeignError(TapelessError):
    """Compressed in a way that is not read here."""


class Pieces(RawIOBase):
    """What an iterator gives, as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._ready = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._ready = memoryview(piece)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def unpacked(path: Path, packed: BinaryIO) -> BinaryIO:
    """What is in a file: of gzip and zstd what they hold, of any other the file itself."""
    begin = packed.read(MAGIC)
    packed.seek(0)
    for magic, name in OTHERS.items():
        if begin.startswith(magic):
            raise ForeignError(f"{path} is compressed with {name}: unpack it, or compress it with gzip.")
    for magic, kind, unpack in ((GZIP, "gzip", _gzip), (ZSTD, "zstd", _zstd)):
        if begin.startswith(magic):
            return BufferedReader(Pieces(_bounded(path, packed, kind, unpack(path, packed))))
    return packed


def _bounded(path: Path, packed: BinaryIO, kind: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Damage and growth without measure become one sentence."""
    made = 0
    try:
        for piece in pieces:
            made += len(piece)
            if made > max(UNSUSPICIOUS, LARGEST_GROWTH * packed.tell()):
                raise TapelessError(
                    f"{path} unpacks to more than {LARGEST_GROWTH} times its size, which hardly any text does: "
                    f"if it is right all the same, unpack it first."
                )
            yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile, DamagedError):
        raise TapelessError(
            f"{path} is damaged: its {kind} data is cut short or altered; fetch or make it again."
        ) from None


class DamagedError(Exception):
    """What is compressed does not unpack."""


def _gzip(path: Path, packed: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=packed) as file:
        while block := file.read(AT_ONCE):
            yield block


def _zstd(path: Path, packed: BinaryIO) -> Iterator[bytes]:
    """The frames of a file, one after the other. The package's own reader takes half a frame for a whole one."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise TapelessError(
            f"{path} is compressed with zstd, and that needs a package: pip install 'tapeless[zstd]'."
        ) from None
    frame: Any = None
    rest = b""
    while block := rest or packed.read(ZSTD_AT_ONCE):
        frame, rest = frame or zstandard.ZstdDecompressor().decompressobj(), b""
        try:
            yield frame.decompress(block)
        except zstandard.ZstdError:
            raise DamagedError from None
        if frame.eof:
            frame, rest = None, frame.unused_data
    if frame is not None:
        raise DamagedError
