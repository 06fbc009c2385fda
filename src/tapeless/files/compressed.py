"""Compressed files as a stream of what is in them, a little at a time, as long as that grows like text does."""

from __future__ import annotations

import gzip
import zlib
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
# A zstd frame turns four bytes into 128 KiB at most, so that so many become 32 MiB.
ZSTD_AT_ONCE = 1 << 10


class ForeignError(TapelessError):
    """Compressed in a way that is not read here."""


def unpacked(path: Path, packed: BinaryIO) -> BinaryIO:
    """What is in a file: of gzip and zstd what they hold, of any other the file itself."""
    begin = packed.read(MAGIC)
    packed.seek(0)
    for magic, name in OTHERS.items():
        if begin.startswith(magic):
            raise ForeignError(f"{path} is compressed with {name}: unpack it, or compress it with gzip.")
    if begin.startswith(GZIP):
        return BufferedReader(_Bounded(path, packed, gzip.GzipFile(fileobj=packed), "gzip"))
    if begin.startswith(ZSTD):
        return BufferedReader(_Bounded(path, packed, _Frames(path, packed), "zstd"))
    return packed


class _Bounded(RawIOBase):
    """Damage and growth without measure become one sentence."""

    def __init__(self, path: Path, packed: BinaryIO, unpacking: Any, kind: str) -> None:
        self._path, self._packed, self._unpacking, self._kind = path, packed, unpacking, kind
        self._made = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._unpacking.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile, DamagedError):
            raise TapelessError(
                f"{self._path} is damaged: its {self._kind} data is cut short or altered; fetch or make it again."
            ) from None
        self._made += count
        if self._made > max(UNSUSPICIOUS, LARGEST_GROWTH * self._packed.tell()):
            raise TapelessError(
                f"{self._path} unpacks to more than {LARGEST_GROWTH} times its size, which hardly any text does: "
                f"if it is right all the same, unpack it first."
            )
        return count


class DamagedError(Exception):
    """What is compressed does not unpack."""


class _Frames:
    """The frames of a zstd file, one after the other. The package's own reader takes half a frame for a whole one."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        try:
            import zstandard
        except ModuleNotFoundError:
            raise TapelessError(
                f"{path} is compressed with zstd, and that needs a package: pip install 'tapeless[zstd]'."
            ) from None
        self._packed, self._package = packed, zstandard
        self._frame: Any = None
        self._ready, self._rest = memoryview(b""), b""

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._rest or self._packed.read(ZSTD_AT_ONCE)
            self._rest = b""
            if not block:
                if self._frame is not None:
                    raise DamagedError
                return 0
            self._ready = memoryview(self._unpack(block))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, block: bytes) -> bytes:
        if self._frame is None:
            self._frame = self._package.ZstdDecompressor().decompressobj()
        try:
            made: bytes = self._frame.decompress(block)
        except self._package.ZstdError:
            raise DamagedError from None
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None
        return made
