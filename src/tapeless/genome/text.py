"""Text files of the field as they come: plain, gzip or bgzip, with any line ends, with or without a byte-order mark."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from stat import S_ISREG
from typing import TextIO

from tapeless.errors import TapelessError

GZIP = b"\x1f\x8b"
OTHER_FORMATS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The lines of a plain or gzip file; whatever goes wrong while they are read becomes one sentence."""
    try:
        if not (path.is_dir() or S_ISREG(path.stat().st_mode)):
            raise TapelessError(f"{path} is not a plain file, and it is read twice: write it to the disk first.")
        with path.open("rb") as raw:
            begin = raw.peek(8)
            for magic, name in OTHER_FORMATS.items():
                if begin.startswith(magic):
                    raise TapelessError(f"{path} is compressed with {name}: unpack it, or compress it with gzip.")
            stream = gzip.GzipFile(fileobj=raw) if begin.startswith(GZIP) else raw
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
