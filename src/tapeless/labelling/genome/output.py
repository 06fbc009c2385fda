"""What was predicted, as the field reads it: genes in GFF3, GTF, BED and as proteins in FASTA, other features in GFF3,
and probabilities base by base in bedGraph.

bedGraph knows no strand and allows no overlap, so each strand has a file. All are written beside and renamed once
every sequence is in them: a reader sees the old files or the new ones, and never a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import rename
from tapeless.labelling.genome.codons import FRAMES
from tapeless.labelling.genome.dna import STRANDS
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.ops.contract import Array

SOURCE = "tapeless"
CODING = "CDS"
NAME_CHARACTERS = ".:^*$@!+_?-|"  # what GFF3 leaves as it is in a sequence's name, besides letters and digits
STEPS = 100  # bedGraph values are rounded to hundredths: long stretches of one value become one line
VALUES = [f"{step / STEPS:g}".encode() for step in range(STEPS + 1)]
TRACKS = ("plus.bedgraph", "minus.bedgraph")
OF_GENES = ("gff3", "gtf", "bed", "faa")
LINE = 60  # amino acids on a line


class Writer:
    """Takes the predictions of one sequence after the other, from left to right; made by `writing`."""

    def __init__(
        self, lengths: Mapping[str, int], feature: str, code: GeneticCode, files: Mapping[str, BinaryIO]
    ) -> None:
        self.written = 0  # genes, or stretches
        self._feature, self._code, self._files = feature, code, files
        self._tracks: dict[str, tuple[str, int, int]] = {}  # the last line of each, which may still grow
        files["gff3"].write(b"##gff-version 3\n")
        for name, length in lengths.items():
            files["gff3"].write(f"##sequence-region {_escaped(name)} 1 {length}\n".encode())

    def stretches(self, name: str, found: Sequence[tuple[int, int, str, float]]) -> None:
        """(start, end, strand, probability), 0-based and half-open."""
        for start, end, strand, probability in sorted(found):
            self.written += 1
            identity = f"{_escaped(self._feature)}{self.written}"
            self._line(name, self._feature, start, end, f"{probability:.4f}", strand, ".", f"ID={identity}")

    def genes(self, name: str, letters: Array, genes: Sequence[Gene]) -> None:
        """With the letters of the + strand."""
        for gene in genes:
            self.written += 1
            self._gene(name, f"{self.written}", gene)
            self._protein(name, f"{self.written}", gene.coding(letters), gene)

    def _gene(self, name: str, number: str, gene: Gene) -> None:
        identity, score = f"gene{number}", f"{gene.probability:.4f}"
        whole = "" if gene.has_start and gene.has_stop else ";partial=true"
        self._line(name, "gene", gene.left, gene.right, score, gene.strand, ".", f"ID={identity}{whole}")
        parent = f"ID=mRNA{number};Parent={identity}{whole}"
        self._line(name, "mRNA", gene.left, gene.right, score, gene.strand, ".", parent)
        phases = dict(zip(gene.ordered(), gene.phases(), strict=True))
        coding = [(CODING, start, end, phase) for (start, end), phase in sorted(phases.items())]
        signals = [("start_codon", *each, 0) for each in _codon(gene, True)] if gene.has_start else []
        signals += [("stop_codon", *each, 0) for each in _codon(gene, False)] if gene.has_stop else []
        for kind, start, end, phase in coding + signals:
            identified = f"ID=cds{number};" if kind == CODING else ""
            self._line(name, kind, start, end, score, gene.strand, f"{phase}", f"{identified}Parent=mRNA{number}")
        self._gtf(name, number, gene, coding + signals)
        blocks = ",".join(f"{end - start}" for start, end in gene.exons)
        starts = ",".join(f"{start - gene.left}" for start, _ in gene.exons)
        shown = round(1000 * gene.probability)
        self._files["bed"].write(
            f"{name}\t{gene.left}\t{gene.right}\t{identity}\t{shown}\t{gene.strand}\t{gene.left}\t{gene.right}\t0\t"
            f"{len(gene.exons)}\t{blocks}\t{starts}\n".encode()
        )

    def _gtf(self, name: str, number: str, gene: Gene, lines: Sequence[tuple[str, int, int, int]]) -> None:
        """Where the stop codon does not belong to the CDS."""
        names = f'gene_id "gene{number}"; transcript_id "mRNA{number}";'
        stops = sum(end - start for kind, start, end, _ in lines if kind == "stop_codon")
        rows = [("transcript", gene.left, gene.right, ".")]
        for kind, start, end, phase in lines:
            if kind == CODING:
                start, end = _without(start, end, gene, stops)
            if start < end:
                rows.append((kind, start, end, f"{phase}"))
        for kind, start, end, frame in rows:
            self._files["gtf"].write(
                f"{name}\t{SOURCE}\t{kind}\t{start + 1}\t{end}\t.\t{gene.strand}\t{frame}\t{names}\n".encode()
            )

    def _protein(self, name: str, number: str, coding: Array, gene: Gene) -> None:
        protein = self._code.translate(coding, gene.has_start)
        lines = "".join(f"{protein[at : at + LINE]}\n" for at in range(0, len(protein), LINE))
        self._files["faa"].write(f">mRNA{number} gene{number} {name}\n{lines}".encode())

    def _line(self, name: str, kind: str, start: int, end: int, score: str, strand: str, phase: str, more: str) -> None:
        columns = (_escaped(name), SOURCE, kind, start + 1, end, score, strand, phase, f"{more};probability={score}")
        self._files["gff3"].write(("\t".join(map(str, columns)) + "\n").encode())

    def track(self, name: str, first: int, probabilities: Array) -> None:
        """Of both strands the next bases, from `first` on: (2, bases). Equal neighbours are one line."""
        for suffix, row in zip(TRACKS, probabilities, strict=True):
            values = np.rint(row * STEPS).astype(np.int64)
            changes = np.append(0, np.flatnonzero(np.diff(values)) + 1)
            for at, value in zip((changes + first).tolist(), values[changes].tolist(), strict=True):
                last = self._tracks.get(suffix)
                if last is not None and last[0] == name and last[2] == value:
                    continue
                self._close(suffix, at)
                self._tracks[suffix] = (name, at, value)

    def end(self, length: int) -> None:
        """The sequence is over."""
        for suffix in TRACKS:
            self._close(suffix, length)
            self._tracks.pop(suffix, None)

    def _close(self, suffix: str, end: int) -> None:
        if suffix in self._tracks:
            name, start, value = self._tracks[suffix]
            self._files[suffix].write(b"%s\t%d\t%d\t%s\n" % (name.encode(), start, end, VALUES[value]))


def _codon(gene: Gene, first: bool) -> list[tuple[int, int]]:
    """The stretches of a gene's first or last codon, from left to right: an intron may split it."""
    left = first == (gene.strand == "+")
    found, missing = [], FRAMES
    for start, end in gene.exons if left else gene.exons[::-1]:
        taken = min(missing, end - start)
        found.append((start, start + taken) if left else (end - taken, end))
        missing -= taken
        if not missing:
            break
    return sorted(found)


def _without(start: int, end: int, gene: Gene, stops: int) -> tuple[int, int]:
    """Of an exon what is no part of the stop codon."""
    behind = sum(max(0, b - a) for a, b in gene.exons if (a >= end if gene.strand == "+" else b <= start))
    cut = max(0, stops - behind)
    return (start, max(start, end - cut)) if gene.strand == "+" else (min(end, start + cut), end)


def output_paths(prefix: Path, feature: str) -> tuple[Path, ...]:
    suffixes = (*(OF_GENES if feature == CODING else ("gff3",)), *TRACKS)
    return tuple(prefix.with_name(f"{prefix.name}.{suffix}") for suffix in suffixes)


@contextmanager
def writing(prefix: Path, lengths: Mapping[str, int], feature: str, code: GeneticCode) -> Iterator[Writer]:
    """A Writer of PREFIX.gff3 and the others, which appear when the block is done."""
    for name in lengths:
        if name.startswith("#") or name in ("track", "browser"):
            raise TapelessError(f"a sequence named {name!r} reads as a comment in bedGraph and BED: rename it.")
    if not prefix.name or "\0" in str(prefix):
        raise TapelessError(f"{str(prefix)!r} is no name for output files: choose another.")
    paths = output_paths(prefix, feature)
    for path in paths:
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
    parts = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths]
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(part.open("wb")) for part in parts]
            names = [path.name.removeprefix(f"{prefix.name}.") for path in paths]
            yield Writer(lengths, feature, code, dict(zip(names, files, strict=True)))
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for part, path in zip(parts, paths, strict=True):
            rename(part, path)
    except OSError as error:
        raise TapelessError(f"cannot write {prefix}: {error.strerror or error}; nothing was left there.") from None
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink()


def _escaped(name: str) -> str:
    return quote(name, safe=NAME_CHARACTERS)


def strands_found(found: tuple[Array, Array], probabilities: Array) -> list[tuple[int, int, str, float]]:
    """Stretches of both strands with their mean probability."""
    return [
        (start, end, strand, float(row[start:end].mean()))
        for strand, stretches, row in zip(STRANDS, found, probabilities, strict=True)
        for start, end in stretches.tolist()
    ]
