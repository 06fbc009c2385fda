"""Labels from GFF3: which bases of which strand belong to a feature of one type, such as exon or CDS.

Files are taken as NCBI and others write them. Only features of the type that is asked for are looked at closely: what
else a file holds (regions, genes across the origin, features without a strand) cannot refuse it. What the file leaves
open is unknown and neither feature nor background: the bases of a feature whose strand is not told, on both strands;
those of a pseudogene (by type, or `pseudo=true`), which reads like a gene and is none; and sequences never named.

gffutils and BCBio-GFF read what is written here in the tests, but do not read here: the one builds a database first,
the other stops at bad lines without their number, and eight columns of a line are all that labels need.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from tapeless.errors import TapelessError
from tapeless.labelling.genome.dna import STRANDS
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.intervals import mask, merged
from tapeless.labelling.genome.text import numbered_lines, open_text
from tapeless.ops.contract import Array

COLUMNS = 9
PSEUDOGENE = "pseudogene"
PREFERRED = ("CDS", "exon")
NO_STRAND = (".", "?")
MOST_DIGITS = 15  # far beyond any sequence, and a bound on what int() is given
MOST_SHOWN = 20  # characters of a column
UNKNOWN = -1

Key = tuple[str, str]  # sequence, strand


@dataclass(frozen=True)
class Annotation:
    """The features of one type on every sequence and strand, in the coordinates of the + strand; where it is unknown
    whether there are any (a feature that is known comes first); and what a user should know."""

    feature: str
    intervals: dict[Key, Array]
    unknown: dict[Key, Array]
    genes: dict[str, tuple[Gene, ...]]  # by sequence; features with one Parent, else with one ID, are one gene
    notes: tuple[str, ...]


def _spans() -> dict[Key, array[int]]:
    return defaultdict(lambda: array("q"))


@dataclass
class _FeatureSpans:
    """What was read of one type: pairs of start and end, 0-based and half-open, ends as they were given."""

    known: dict[Key, array[int]] = field(default_factory=_spans)
    unsure: dict[Key, array[int]] = field(default_factory=_spans)
    genes: dict[tuple[str, str, str], list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    strandless: int = 0
    pseudo: int = 0
    absent: Counter[str] = field(default_factory=Counter)  # features by sequence that the FASTA file does not have
    beyond: dict[str, tuple[str, int]] = field(default_factory=dict)  # by sequence the first that ends behind it
    refusal: TapelessError | None = None  # the first; it counts where this type is the one that is taken


@dataclass
class _Read:
    """What was read of a whole file."""

    wanted: dict[str, _FeatureSpans]
    counts: Counter[str] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)
    circular: set[str] = field(default_factory=set)
    pseudogenes: dict[Key, array[int]] = field(default_factory=_spans)  # of any type of feature


def read_annotation(path: Path, lengths: Mapping[str, int], feature: str | None = None) -> Annotation:
    """The features of one type, `feature`; where none is named, CDS, or exon where there is no CDS."""
    wanted = PREFERRED if feature is None else (feature,)
    read = _Read({each: _FeatureSpans() for each in wanted})
    with open_text(path) as text:
        for number, line in numbered_lines(path, text):
            if line.startswith((">", "##FASTA")):  # the sequences may follow the features
                break
            if line.startswith("##gff-version"):
                _check_version(path, number, line)
            if line.startswith("##sequence-region"):
                read.named.update(unquote(word) for word in line.split()[1:2])
            if line.startswith("#") or not line.strip():
                continue
            _take(f"{path}, line {number}", line, lengths, read)
    for each in wanted:
        if read.counts[each]:
            return _annotation(path, each, read, lengths)
    raise TapelessError(_none_found(path, wanted, read.counts))


def labels(annotation: Annotation, lengths: Mapping[str, int]) -> dict[Key, Array]:
    """For every sequence and strand int8, 1 where a base is in a feature, −1 where that is unknown, 0 elsewhere; both
    strands in the + strand's coordinates."""
    found = {}
    for sequence, length in lengths.items():
        for strand in STRANDS:
            here = mask(annotation.intervals[sequence, strand], length).view(np.int8)
            here[(mask(annotation.unknown[sequence, strand], length) == 1) & (here == 0)] = UNKNOWN
            found[sequence, strand] = here
    return found


def _check_version(path: Path, number: int, line: str) -> None:
    version = line.removeprefix("##gff-version").strip()
    if version.split(".")[0] != "3":
        raise TapelessError(
            f"{path}, line {number}: this is GFF version {version[:20] or 'unknown'}: convert it to GFF3."
        )


def _take(where: str, line: str, lengths: Mapping[str, int], read: _Read) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise TapelessError(
            f"{where}: {len(columns)} column{'s' * (len(columns) != 1)} where GFF3 has {COLUMNS}, separated by tabs: "
            f"{line.strip()[:40]!r}; give GFF3."
        )
    sequence, kind, attributes = unquote(columns[0]), columns[2], columns[8].strip()
    if not kind.strip():
        raise TapelessError(f"{where}: the feature has no type: name it in the third column, such as exon.")
    read.counts[kind] += 1
    read.named.add(sequence)
    flags = {each.strip().lower() for each in attributes.split(";")}
    if "is_circular=true" in flags:
        read.circular.add(sequence)
    found = read.wanted.get(kind)
    if found is None and sequence in lengths and ("pseudo=true" in flags or kind == PSEUDOGENE):
        _take_pseudogene(columns, sequence, lengths[sequence], read)
    if found is None or found.refusal is not None:
        return
    found.count += 1
    if sequence in lengths:
        try:
            pseudo = "pseudo=true" in flags and "pseudo" not in kind.lower()  # whoever asks for pseudogenes means them
            _take_feature(where, columns, sequence, lengths[sequence], pseudo, found)
        except TapelessError as refusal:
            found.refusal = refusal
    else:
        found.absent[sequence] += 1


def _take_pseudogene(columns: list[str], sequence: str, length: int, read: _Read) -> None:
    """What lies in a pseudogene is unknown, whatever is asked for; a line that cannot be read is nobody's feature."""
    start, end, strand = (columns[number].strip() for number in (3, 4, 6))
    numbers = [int(each) for each in (start, end) if each.isascii() and each.isdigit() and len(each) <= MOST_DIGITS]
    if strand in STRANDS and len(numbers) == 2 and 1 <= numbers[0] <= numbers[1] <= length:
        read.pseudogenes[sequence, strand].extend((numbers[0] - 1, numbers[1]))


def _take_feature(
    where: str, columns: list[str], sequence: str, length: int, pseudo: bool, found: _FeatureSpans
) -> None:
    first, last, strand, attributes = columns[3], columns[4], columns[6], columns[8]
    if attributes.strip() != "." and "=" not in attributes:
        raise TapelessError(
            f"{where}: attributes {attributes.strip()[:40]!r} are not key=value as in GFF3 (is this GTF?): convert it."
        )
    start, end = _coordinate(where, "start", first), _coordinate(where, "end", last)
    if start > end:
        raise TapelessError(f"{where}: start {start} comes after end {end}: in GFF3 start ≤ end on both strands.")
    if strand not in STRANDS and strand not in NO_STRAND:
        raise TapelessError(f"{where}: strand {strand[:20]!r} is none of + - . ?: correct it.")
    if end > length:
        found.beyond.setdefault(sequence, (where, end))
        if start > length or end - length >= start:  # more than once around
            raise _not_of_this_assembly(where, end, sequence, length)
    pieces = ((start - 1, end),) if end <= length else ((start - 1, length), (0, end - length))
    found.strandless += strand in NO_STRAND
    found.pseudo += pseudo and strand in STRANDS
    if len(pieces) == 1 and strand in STRANDS and not pseudo:
        names = dict(each.strip().partition("=")[::2] for each in attributes.split(";"))
        identity = names.get("Parent", names.get("ID", f"{len(found.genes)}")).split(",")[0]
        found.genes[sequence, strand, identity].append((start - 1, end, columns[7]))
    for each in (strand,) if strand in STRANDS else STRANDS:
        for piece in pieces:
            (found.unsure if pseudo or strand in NO_STRAND else found.known)[sequence, each].extend(piece)


def _coordinate(where: str, what: str, text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits:
        raise TapelessError(f"{where}: {what} {_shown(text)} is no whole number of at least 1: GFF3 counts from 1.")
    if len(digits) > MOST_DIGITS:
        raise TapelessError(f"{where}: {what} {_shown(text)} is too large: no sequence is that long.")
    return int(digits)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]!r} …"


def _not_of_this_assembly(where: str, end: int, sequence: str, length: int) -> TapelessError:
    return TapelessError(
        f"{where}: end {end} lies beyond the {length} bases of {sequence!r}, which no line calls circular "
        "(Is_circular=true): do FASTA and GFF3 belong to the same assembly?"
    )


def _annotation(path: Path, feature: str, read: _Read, lengths: Mapping[str, int]) -> Annotation:
    found = read.wanted[feature]
    if found.refusal is not None:
        raise found.refusal
    for sequence, (where, end) in found.beyond.items():
        if sequence not in read.circular:
            raise _not_of_this_assembly(where, end, sequence, lengths[sequence])
    if found.absent.total() == found.count:
        raise TapelessError(_absent(path, feature, found.absent, lengths))
    if not found.known:
        raise TapelessError(
            f"{path}: no {feature} can be learned from: of {found.count}, {found.strandless} have no strand and "
            f"{found.pseudo} belong to pseudogenes; labels belong to a strand: give + or -."
        )
    intervals: dict[Key, Array] = {}
    unknown: dict[Key, Array] = {}
    overlapping = 0
    for sequence, length in lengths.items():
        for strand in STRANDS:
            intervals[sequence, strand], here = merged(_pairs(found.known.get((sequence, strand), ())))
            overlapping += here
            pseudo = () if "pseudo" in feature.lower() else read.pseudogenes.get((sequence, strand), ())
            unsure = _pairs([*found.unsure.get((sequence, strand), ()), *pseudo])
            unknown[sequence, strand] = merged(unsure if sequence in read.named else np.array([[0, length]]))[0]
    bare = [name for name in lengths if name in read.named and not any(len(intervals[name, each]) for each in STRANDS)]
    unnamed = [name for name in lengths if name not in read.named]
    notes = []
    if overlapping:
        notes.append(f"{overlapping} of the {feature} features overlap another one on their strand: merged.")
    if found.strandless:
        notes.append(f"{found.strandless} of the {feature} features have no strand: unknown on both.")
    if found.pseudo:
        notes.append(f"{found.pseudo} of the {feature} features belong to pseudogenes: unknown.")
    if found.absent:
        notes.append(
            f"{found.absent.total()} of the {feature} features lie on sequences that the FASTA file does not have "
            f"({_some(found.absent)}): left out."
        )
    if bare:
        notes.append(
            f"no {feature} on {len(bare)} of {len(lengths)} sequences ({_some(bare)}): all of it counts as background."
        )
    if unnamed:
        notes.append(
            f"the annotation says nothing of {len(unnamed)} of {len(lengths)} sequences ({_some(unnamed)}): unknown."
        )
    return Annotation(feature, intervals, unknown, _genes(found), tuple(notes))


def _genes(found: _FeatureSpans) -> dict[str, tuple[Gene, ...]]:
    """Each once, where several transcripts have the same coding bases."""
    genes: dict[str, dict[Gene, None]] = defaultdict(dict)
    for (sequence, strand, _), lines in found.genes.items():
        lines.sort()
        phase = (lines[0] if strand == "+" else lines[-1])[2]
        exons = tuple((start, end) for start, end, _ in lines)
        if all(left[1] < right[0] for left, right in pairwise(exons)):  # not where a frame shifts
            genes[sequence][Gene(strand, exons, int(phase) if phase in ("1", "2") else 0)] = None
    return {sequence: tuple(each) for sequence, each in genes.items()}


def _pairs(flat: Iterable[int]) -> Array:
    return np.array(flat, np.int64).reshape(-1, 2)


def _some(names: Iterable[str]) -> str:
    shown = [name[:40] for name in names]
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


def _absent(path: Path, feature: str, absent: Mapping[str, int], lengths: Mapping[str, int]) -> str:
    near = get_close_matches(next(iter(absent)), lengths, n=1, cutoff=0.6)
    has = _some(near or lengths) + (f" ({len(lengths)} in all)" if len(lengths) > 3 else "")
    return (
        f"{path}: every {feature} lies on a sequence that is not in the FASTA file ({_some(absent)}), which has {has}: "
        "names must be the same, versions included; take both files from one source."
    )


def _none_found(path: Path, wanted: tuple[str, ...], counts: Counter[str]) -> str:
    if not counts:
        return f"{path} holds no features: give a GFF3 file with at least one line of {COLUMNS} columns."
    there = ", ".join(f"{name[:40]} ({count})" for name, count in counts.most_common(5))
    return f"{path} holds no feature of type {' or '.join(wanted)}, but {there}: name one of these types."
