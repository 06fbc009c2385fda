"""Exon labels from GFF3: which bases of which strand are exonic.

gffutils and BCBio-GFF read what is written here in the tests, but do not read here: the one builds a database first,
the other stops at bad lines without their number, and eight columns of a line are all that labels need.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from tapeless.errors import TapelessError
from tapeless.genome.dna import STRANDS
from tapeless.genome.intervals import mask, merged
from tapeless.genome.text import numbered_lines, open_text
from tapeless.ops.contract import Array

COLUMNS = 9
PREFERRED = ("exon", "CDS")
MOST_DIGITS = 15  # far beyond any sequence, and a bound on what int() is given

Key = tuple[str, str]  # sequence, strand


@dataclass(frozen=True)
class Annotation:
    """The exons of every sequence and strand, in the coordinates of the + strand, and what a user should know."""

    feature: str
    intervals: dict[Key, Array]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Line:
    sequence: str
    feature: str
    start: int
    end: int
    strand: str


def read_annotation(path: Path, lengths: Mapping[str, int], feature: str | None = None) -> Annotation:
    """The features of one type, `feature`; where none is named, exon, or CDS where there is no exon."""
    wanted = PREFERRED if feature is None else (feature,)
    found: dict[str, dict[Key, array[int]]] = {each: defaultdict(lambda: array("q")) for each in wanted}
    counts: Counter[str] = Counter()
    with open_text(path) as text:
        for number, line in numbered_lines(path, text):
            if line.startswith(">"):  # the sequences may follow the features
                break
            if line.startswith("##gff-version"):
                _check_version(path, number, line)
            if line.startswith("#") or not line.strip():
                continue
            parsed = _parse(f"{path}, line {number}", line, lengths)
            counts[parsed.feature] += 1
            if parsed.feature in found:
                if parsed.strand not in STRANDS:
                    raise TapelessError(
                        f"{path}, line {number}: the {parsed.feature} has strand {parsed.strand!r}, "
                        "but labels belong to a strand: give + or -."
                    )
                found[parsed.feature][parsed.sequence, parsed.strand].extend((parsed.start - 1, parsed.end))
    for each in wanted:
        if counts[each]:
            return _annotation(each, found[each], lengths)
    raise TapelessError(_none_found(path, wanted, counts))


def labels(annotation: Annotation, lengths: Mapping[str, int]) -> dict[Key, Array]:
    """For every sequence and strand uint8, 1 where a base is exonic; both strands in the + strand's coordinates."""
    return {
        (sequence, strand): mask(annotation.intervals[sequence, strand], length)
        for sequence, length in lengths.items()
        for strand in STRANDS
    }


def _check_version(path: Path, number: int, line: str) -> None:
    version = line.removeprefix("##gff-version").strip()
    if version.split(".")[0] != "3":
        raise TapelessError(
            f"{path}, line {number}: this is GFF version {version[:20] or 'unknown'}: convert it to GFF3."
        )


def _parse(where: str, line: str, lengths: Mapping[str, int]) -> _Line:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise TapelessError(
            f"{where}: {len(columns)} column{'s' * (len(columns) != 1)} where GFF3 has {COLUMNS}, separated by tabs: "
            f"{line.strip()[:40]!r}; give GFF3."
        )
    sequence, _, feature, first, last, _, strand, _, attributes = columns
    if attributes.strip() != "." and "=" not in attributes:
        raise TapelessError(
            f"{where}: attributes {attributes.strip()[:40]!r} are not key=value as in GFF3 (is this GTF?): convert it."
        )
    sequence = unquote(sequence)
    if sequence not in lengths:
        raise TapelessError(
            f"{where}: sequence {sequence[:40]!r} is not in the FASTA file; {_nearest(sequence, lengths)}"
        )
    if not feature.strip():
        raise TapelessError(f"{where}: the feature has no type: name it in the third column, such as exon.")
    start, end = _coordinate(where, "start", first), _coordinate(where, "end", last)
    if start > end:
        raise TapelessError(f"{where}: start {start} comes after end {end}: in GFF3 start ≤ end on both strands.")
    if end > lengths[sequence]:
        raise TapelessError(
            f"{where}: end {end} lies beyond the {lengths[sequence]} bases of {sequence!r}: "
            "do FASTA and GFF3 belong to the same assembly?"
        )
    if strand not in ("+", "-", ".", "?"):
        raise TapelessError(f"{where}: strand {strand[:20]!r} is none of + - . ?: correct it.")
    return _Line(sequence, feature, start, end, strand)


def _coordinate(where: str, what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= 1):
        raise TapelessError(f"{where}: {what} {text[:20]!r} is no whole number of at least 1: GFF3 counts from 1.")
    return int(text)


def _nearest(sequence: str, lengths: Mapping[str, int]) -> str:
    near = get_close_matches(sequence, lengths, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    names = list(lengths)
    return "it has " + ", ".join(names[:3]) + (f" and {len(names) - 3} more." if len(names) > 3 else ".")


def _annotation(feature: str, found: Mapping[Key, array[int]], lengths: Mapping[str, int]) -> Annotation:
    intervals: dict[Key, Array] = {}
    overlapping = 0
    for sequence in lengths:
        for strand in STRANDS:
            pairs = np.array(found.get((sequence, strand), ()), np.int64).reshape(-1, 2)
            intervals[sequence, strand], here = merged(pairs)
            overlapping += here
    notes = []
    if overlapping:
        notes.append(f"{overlapping} of the {feature} features overlap another one on their strand: merged.")
    bare = [name for name in lengths if not any(len(intervals[name, strand]) for strand in STRANDS)]
    if bare:
        some = ", ".join(bare[:3]) + (", …" if len(bare) > 3 else "")
        notes.append(
            f"no {feature} on {len(bare)} of {len(lengths)} sequences ({some}): all of it counts as background."
        )
    return Annotation(feature, intervals, tuple(notes))


def _none_found(path: Path, wanted: tuple[str, ...], counts: Counter[str]) -> str:
    if not counts:
        return f"{path} holds no features: give a GFF3 file with at least one line of {COLUMNS} columns."
    there = ", ".join(f"{name[:40]} ({count})" for name, count in counts.most_common(5))
    return f"{path} holds no feature of type {' or '.join(wanted)}, but {there}: name one of these types."
