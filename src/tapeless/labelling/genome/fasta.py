"""FASTA, record by record, one byte a base.

Biopython's parser is the oracle in the tests but does not read here: it silently skips all that stands before the
first header, which is how a file without one comes to look empty, and it holds a record as lines and then as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.labelling.genome.dna import PIECE, check_bases
from tapeless.labelling.genome.text import open_text
from tapeless.ops.contract import Array

LONGEST_NAME = 1000  # characters; those of the archives have some ten


@dataclass(frozen=True)
class FastaRecord:
    name: str  # the first word of the header
    bases: Array  # uint8, ASCII letters in the case of the file, checked


def read_records(path: Path) -> Iterator[FastaRecord]:
    """The records of a FASTA file in their order. One is held at a time, and nothing of the others."""
    names: set[str] = set()
    name: str | None = None
    bases = bytearray()
    with open_text(path) as text:
        at_line_start = True
        while line := text.readline(PIECE):  # a chromosome may well be a single line
            begins, at_line_start = at_line_start, line.endswith("\n")
            if begins and line.startswith(">"):
                if len(line) == PIECE and not at_line_start:
                    raise TapelessError(f"{path} has a header of more than {PIECE:,} characters: shorten it.")
                if name is not None:
                    yield _record(path, name, bases)
                    bases = bytearray()
                name = _name(path, line, names)
            elif name is not None:
                bases += "".join(line.split()).encode("latin-1", "replace")
            elif line.strip():
                raise TapelessError(
                    f"{path} is no FASTA file: it begins with {line.strip()[:20]!r} where a header such as "
                    "'>chr1' belongs; add one."
                )
    if name is None:
        raise TapelessError(f"{path} is empty: a FASTA file holds at least one header and its sequence.")
    yield _record(path, name, bases)


def read_lengths(path: Path) -> dict[str, int]:
    """How many bases each record has. Reads and checks the whole file, so that nothing is begun with a bad one."""
    return {record.name: len(record.bases) for record in read_records(path)}


def _name(path: Path, header: str, names: set[str]) -> str:
    words = header[1:].split(maxsplit=1)
    if not words or header[1:2].isspace():
        raise TapelessError(f"{path} has a header without a name, {header.strip()[:40]!r}: write one right after '>'.")
    name = words[0]
    if not name.isprintable():
        raise TapelessError(f"{path} has a record with unprintable characters in its name, {name[:40]!r}: rename it.")
    if len(name) > LONGEST_NAME:
        raise TapelessError(
            f"{path} has a record with a name of {len(name):,} characters, {name[:40]!r} …: shorten it."
        )
    if name in names:
        raise TapelessError(f"{path} has two records named {name!r}: names must differ by their first word.")
    names.add(name)
    return name


def _record(path: Path, name: str, bases: bytearray) -> FastaRecord:
    array = np.frombuffer(bases, np.uint8)
    check_bases(array, f"{path}: record {name!r}")
    return FastaRecord(name, array)
