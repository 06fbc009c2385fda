"""Text files of the field as they come: plain, gzip or bgzip, with any line ends, with or without a byte-order mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from tapeless.errors import TapelessError
from tapeless.files.compressed import unpacked
from tapeless.files.plain import open_plain

LONGEST_LINE = 1 << 20  # characters; a line of GFF3 has some hundred


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
    """The lines of a plain or compressed file; whatever goes wrong while they are read becomes one sentence."""
    try:
        # Names are compared as text; a byte that is no UTF-8 matters only where it cannot be right anyway.
        with (
            open_plain(path) as raw,
            TextIOWrapper(unpacked(path, raw), encoding="utf-8-sig", errors="replace") as text,
        ):
            yield text
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror or error}.") from None
    except ValueError as error:  # a NUL in the name
        if "null" not in str(error):
            raise
        raise TapelessError(f"{str(path)!r} is no name of a file: choose another.") from None
