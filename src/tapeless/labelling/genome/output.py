"""What was predicted, as the field reads it: stretches in GFF3, probabilities base by base in bedGraph.

bedGraph knows no strand and allows no overlap, so each strand has a file. All are written beside and renamed once
every sequence is in them: a reader sees the old files or the new ones, and never a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import rename
from tapeless.labelling.genome.codons import phase
from tapeless.labelling.genome.dna import PIECE, STRANDS, opposite_bases
from tapeless.labelling.genome.intervals import runs
from tapeless.ops.contract import Array

SOURCE = "tapeless"
CODING = "CDS"
NAME_CHARACTERS = ".:^*$@!+_?-|"  # what GFF3 leaves as it is in a sequence's name, besides letters and digits
STEPS = 100  # bedGraph values are rounded to hundredths: long stretches of one value become one line
VALUES = [f"{step / STEPS:g}".encode() for step in range(STEPS + 1)]
ROUNDING = 1e-3  # how far above 1 or below 0 an average of probabilities may come out


@dataclass(frozen=True)
class Segmentation:
    """How probabilities become stretches: at least `threshold`, gaps of up to `gap` bases closed, no short ones."""

    threshold: float = 0.5
    shortest: int = 30
    gap: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise TapelessError(f"threshold must be above 0 and at most 1, not {self.threshold!r}.")
        for name, least in (("shortest", 1), ("gap", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < inf:
                raise TapelessError(f"{name} must be a whole number of at least {least}, not {value!r}.")


@dataclass(frozen=True)
class PredictedStretch:
    start: int  # 0-based, half-open
    end: int
    probability: float  # the mean over its bases


def find_stretches(pieces: Iterable[Array], cut: Segmentation) -> Iterator[PredictedStretch]:
    """Stretches in probabilities that come piece by piece, each as soon as it is known to have ended."""
    start = end = -1  # of the one that may still grow
    total = after = 0.0  # its probabilities summed, and those of the bases behind it
    offset = 0
    for piece in pieces:
        sums = np.concatenate(([0.0], np.cumsum(piece, dtype=np.float64)))
        summed = 0  # up to where in this piece `total` and `after` count
        for left, right in runs(piece >= cut.threshold).tolist():
            if start >= 0 and offset + left - end <= cut.gap:
                total += after + sums[right] - sums[summed]
            else:
                yield from _long_enough(start, end, total, cut)
                start = offset + left
                total = sums[right] - sums[left]
            end, after, summed = offset + right, 0.0, right
        after += sums[-1] - sums[summed]
        offset += len(piece)
        if offset - end > cut.gap:  # whatever comes, it grows no more
            yield from _long_enough(start, end, total, cut)
            start = end = -1
    yield from _long_enough(start, end, total, cut)


def _long_enough(start: int, end: int, total: float, cut: Segmentation) -> Iterator[PredictedStretch]:
    if end - start >= cut.shortest:
        yield PredictedStretch(start, end, float(total) / (end - start))


def bedgraph(name: str, pieces: Iterable[Array], file: BinaryIO) -> Iterator[Array]:
    """Hands the pieces on, and writes them on the way: equal neighbours on one line, whatever piece they are in."""
    prefix = name.encode() + b"\t"
    start = offset = 0
    current = -1
    for piece in pieces:
        values = np.rint(piece * STEPS).astype(np.int8)
        changes = np.flatnonzero(np.diff(values, prepend=np.int8(current)))
        lines = []
        for at, value in zip((changes + offset).tolist(), values[changes].tolist(), strict=True):
            if current >= 0:
                lines.append(b"%s%d\t%d\t%s\n" % (prefix, start, at, VALUES[current]))
            start, current = at, value
        file.write(b"".join(lines))
        offset += len(piece)
        yield piece
    if current >= 0:
        file.write(b"%s%d\t%d\t%s\n" % (prefix, start, offset, VALUES[current]))


@dataclass(frozen=True)
class FeatureKind:
    """What stretches are called; and, of coding ones, the log-odds of codons that tell their frame."""

    feature: str = "exon"
    odds: Array | None = None  # where none were learned, stop codons alone tell

    def __post_init__(self) -> None:
        if not isinstance(self.feature, str) or not self.feature.strip() or not self.feature.isprintable():
            raise TapelessError(f"{self.feature!r} is no type of feature: give one such as exon or CDS.")

    def phase(self, bases: Array, strand: str) -> str:
        """Of a stretch, from the + strand's letters; GFF3 asks for it where a feature is coding, and only there."""
        if self.feature != CODING:
            return "."
        return str(phase(bases if strand == "+" else opposite_bases(bases), self.odds))


class Writer:
    """Takes the predictions of one sequence after the other; made by `writing`."""

    def __init__(
        self,
        lengths: Mapping[str, int],
        cut: Segmentation,
        kind: FeatureKind,
        gff: BinaryIO,
        tracks: Mapping[str, BinaryIO],
    ) -> None:
        self.missing = dict(lengths)
        self.stretches = 0
        self._cut, self._kind, self._gff, self._tracks = cut, kind, gff, tracks
        gff.write(b"##gff-version 3\n")
        for name, length in lengths.items():
            gff.write(f"##sequence-region {_escaped(name)} 1 {length}\n".encode())

    def add(self, name: str, bases: Array, plus: Iterable[Array], minus: Iterable[Array]) -> dict[str, Array]:
        """The + strand's letters, and the probabilities of bases in pieces and in the direction of each strand.

        Returns the stretches by strand as intervals in the + strand's coordinates.
        """
        if name not in self.missing:
            raise TapelessError(f"sequence {name!r} was not announced, or is here for the second time.")
        length = self.missing.pop(name)
        if len(bases) != length:
            raise TapelessError(f"sequence {name!r} was announced with {length} bases, and {len(bases)} came.")
        pieces = {"+": _checked(name, plus, length), "-": _turned(_checked(name, minus, length), length)}
        found = {
            strand: list(find_stretches(bedgraph(name, pieces[strand], self._tracks[strand]), self._cut))
            for strand in STRANDS
        }
        lines = sorted((each.start, each.end, strand, each.probability) for strand in STRANDS for each in found[strand])
        feature = self._kind.feature
        for start, end, strand, probability in lines:
            self.stretches += 1
            frame = self._kind.phase(bases[start:end], strand)
            self._gff.write(
                f"{_escaped(name)}\t{SOURCE}\t{feature}\t{start + 1}\t{end}\t{probability:.4f}\t{strand}\t{frame}\t"
                f"ID={_escaped(feature)}{self.stretches};probability={probability:.4f}\n".encode()
            )
        return {
            strand: np.array([(each.start, each.end) for each in found[strand]], np.int64).reshape(-1, 2)
            for strand in STRANDS
        }


def output_paths(prefix: Path) -> tuple[Path, Path, Path]:
    """GFF3, bedGraph of the + strand, bedGraph of the − strand."""
    plus, minus = (prefix.with_name(f"{prefix.name}.{word}.bedgraph") for word in ("plus", "minus"))
    return prefix.with_name(f"{prefix.name}.gff3"), plus, minus


@contextmanager
def writing(
    prefix: Path, lengths: Mapping[str, int], cut: Segmentation | None = None, kind: FeatureKind | None = None
) -> Iterator[Writer]:
    """A Writer of PREFIX.gff3, PREFIX.plus.bedgraph and PREFIX.minus.bedgraph, which appear when the block is done."""
    _check_names(lengths)
    if not prefix.name or "\0" in str(prefix):
        raise TapelessError(f"{str(prefix)!r} is no name for output files: choose another.")
    paths = output_paths(prefix)
    for path in paths:
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
    parts = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths]
    try:
        with ExitStack() as opened:
            gff, plus, minus = (opened.enter_context(part.open("wb")) for part in parts)
            writer = Writer(lengths, cut or Segmentation(), kind or FeatureKind(), gff, {"+": plus, "-": minus})
            yield writer
            if writer.missing:
                raise TapelessError(f"{len(writer.missing)} of {len(lengths)} sequences were not labelled.")
            for file in (gff, plus, minus):
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


def _check_names(lengths: Mapping[str, int]) -> None:
    for name in lengths:
        if name.startswith("#") or name in ("track", "browser"):
            raise TapelessError(f"a sequence named {name!r} reads as a comment in bedGraph: rename it.")


def _escaped(name: str) -> str:
    return quote(name, safe=NAME_CHARACTERS)


def _checked(name: str, pieces: Iterable[Array], length: int) -> Iterator[Array]:
    """The pieces, held to be probabilities and as many as there are bases."""
    done = 0
    for piece in pieces:
        sound = (piece >= -ROUNDING) & (piece <= 1 + ROUNDING)
        if not sound.all():
            at = int(sound.argmin())
            raise TapelessError(
                f"the prediction for {name!r} holds {piece[at]} at base {done + at + 1}: no probability."
            )
        done += len(piece)
        if done > length:
            break
        yield np.clip(piece, 0, 1)
    if done != length:
        raise TapelessError(f"predictions for {done} bases of {name!r} came, but it has {length}.")


def _turned(pieces: Iterable[Array], length: int) -> Iterator[Array]:
    """From the − strand's direction into the + strand's: the one place where a whole sequence is held, in float32."""
    whole = np.empty(length, np.float32)
    end = length
    for piece in pieces:
        whole[end - len(piece) : end] = piece[::-1]
        end -= len(piece)
    for start in range(0, length, PIECE):
        yield whole[start : start + PIECE]
