"""What a labelling run learns from: a genome with its annotation or a signal with its labels, and what is held out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files.disk import write_whole
from tapeless.files.plain import parse_json, read_plain
from tapeless.labelling.genome.dna import STRANDS, StrandSignal
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.gff import labels, read_annotation
from tapeless.labelling.signal.checks import checked_labels, checked_scales, checked_signal, pieces
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.npy import open_array
from tapeless.labelling.signal.store import MOST_CLASSES, Recording
from tapeless.labelling.signal.task import hold_out
from tapeless.labelling.signal.wavelet import SCALES
from tapeless.ops.contract import Array

SOURCE = "source.json"
VERSION = 1
CALIBRATED = 0.2  # of every training part of a genome, at its end: what a network's scores are worth is learned there
# What a model reads at each position; a run keeps what it was made with.
GENOME_FAMILIES = ("wavelets", "bases", "frames", "opposite")
SIGNAL_FAMILIES = ("wavelets",)
LARGEST = 1 << 24  # bytes of a run's own descriptions


@dataclass(frozen=True)
class Source:
    """What a run learns from: a genome with its annotation, or a signal with its labels."""

    fasta: tuple[str, ...] = ()
    gff: tuple[str, ...] = ()
    feature: str | None = None  # the type of what is found; None only where it was not looked up yet
    code: GeneticCode = field(default_factory=GeneticCode)
    held_out: tuple[str, ...] = ()  # names of sequences, or of files
    signal: str | None = None
    labels: str | None = None
    amplitude: float = 1.0  # what the signal is multiplied by, so that it has unit size
    features: Features = field(default_factory=Features)

    def write(self, folder: Path) -> None:
        content = {"version": VERSION, **asdict(self), "features": self.features.document()}
        content["code"] = {"number": self.code.number, "starts": self.code.starts}
        write_whole(folder / SOURCE, json.dumps(content, indent=2).encode() + b"\n")


@dataclass(frozen=True)
class LabelledSequence:
    """A stretch of a sequence, by strand the label of each base, and its genes, all in the + strand's coordinates."""

    name: str
    bases: Array
    labels: Mapping[str, Array]  # 1 in a feature, 0 outside, −1 where it is not known
    genes: tuple[Gene, ...] = ()
    cuts: tuple[bool, bool] = (False, False)  # whether the sequence goes on to the left, and to the right
    first: int = 0  # its place in the sequence

    def recordings(self) -> list[Recording]:
        """Each strand in its own direction."""
        return [
            Recording(StrandSignal(self.bases, strand), self.labels[strand][:: 1 if strand == "+" else -1])
            for strand in STRANDS
        ]

    def part(self, first: int, last: int) -> LabelledSequence:
        """What lies between two of its places."""
        here = {strand: labels[first:last] for strand, labels in self.labels.items()}
        genes = tuple(each for each in (gene.clipped(first, last) for gene in self.genes) if each is not None)
        cuts = self.cuts[0] or first > 0, self.cuts[1] or last < len(self.bases)
        return LabelledSequence(self.name, self.bases[first:last], here, genes, cuts, self.first + first)


@dataclass(frozen=True)
class LabelledData:
    """Recordings on both sides. Of a genome, what they are the strands of, and what the features are called; the last
    part of what is trained on is kept from the network, as `calibration`."""

    training: list[Recording]
    validation: list[Recording]
    classes: int
    feature: str | None = None
    training_parts: tuple[LabelledSequence, ...] = ()
    calibration: tuple[LabelledSequence, ...] = ()
    parts: tuple[LabelledSequence, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """What a run learns from, read."""

    source: Source
    data: LabelledData


@dataclass(frozen=True)
class Scaled:
    """A signal that is multiplied where it is sliced: it may lie on disk."""

    values: Any
    factor: float

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Array:
        found: Array = np.asarray(self.values[part]) * self.factor
        return found


def make_source(
    *,
    fasta: Sequence[Path] | None = None,
    gff: Sequence[Path] | None = None,
    feature: str | None = None,
    held_out: Sequence[str] = (),
    signal: Path | None = None,
    labels: Path | None = None,
    scales: Sequence[float] = SCALES,
    code: GeneticCode | None = None,
) -> Source:
    """One of the two kinds, whole, with absolute paths; the signal's size is measured."""
    scales = checked_scales(scales)
    fasta, gff = tuple(fasta or ()), tuple(gff or ())
    dna, other = (fasta or None, gff or None), (signal, labels)
    if any(dna) == any(other):
        raise TapelessError("give a genome with --fasta and --gff, or a signal with --signal and --labels.")
    for pair, names in ((dna, ("--fasta", "--gff")), (other, ("--signal", "--labels"))):
        if any(pair) and not all(pair):
            raise TapelessError(f"{names[0]} and {names[1]} belong together: {names[pair.index(None)]} is missing.")
    if fasta:
        if len(fasta) != len(gff):
            raise TapelessError(
                f"{len(fasta)} --fasta and {len(gff)} --gff: give them in pairs, one of each a species."
            )
        features = Features(GENOME_FAMILIES, scales)
        paths = [tuple(map(_absolute, each)) for each in (fasta, gff)]
        return Source(paths[0], paths[1], feature, code or GeneticCode(), tuple(held_out), features=features)
    if feature is not None or held_out or code is not None:
        what = "--held-out" if held_out else "--feature" if feature is not None else "--genetic-code"
        raise TapelessError(f"{what} names something in a genome, and here is a signal: leave it out.")
    assert signal is not None
    amplitude = _amplitude(checked_signal(open_array(signal), str(signal)), signal)
    features = Features(SIGNAL_FAMILIES, scales)
    return Source(signal=_absolute(signal), labels=_absolute(labels), amplitude=amplitude, features=features)


def _absolute(path: Path | None) -> str:
    return str(Path(path or "").resolve())


def _amplitude(signal: Any, path: Path) -> float:
    """One over the standard deviation."""
    wide = [slice(start, start + len(piece)) for start, piece in pieces(signal)]
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused below
        mean = sum(complex(np.sum(signal[part], dtype=np.complex128)) for part in wide) / len(signal)
        square = sum(float(np.sum(np.abs(signal[part] - mean) ** 2)) for part in wide) / len(signal)
    if not 0 < square < float("inf"):
        what = "is the same number throughout" if square == 0 else "has numbers too large to be squared"
        raise TapelessError(f"{path} {what}, so it has no size to go by: give another signal.")
    return float(1 / np.sqrt(square))


def read_source(folder: Path) -> Source:
    path = folder / SOURCE
    try:
        return _source(parse_json(read_plain(path, LARGEST)))
    except FileNotFoundError:
        raise TapelessError(f"{folder} labels no signal: it has no {SOURCE}; make a run with `label train`.") from None
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, TapelessError):
        raise TapelessError(f"{path} is damaged: put it back as it was, or train again.") from None


def _source(content: dict[str, Any]) -> Source:
    """What a file tells. ValueError, or what Python raises of itself, if it tells nothing."""
    version = content.pop("version")
    if type(version) is not int or version != VERSION:
        raise ValueError("another version")
    content["features"] = Features.of(content["features"])
    if {each.name for each in fields(Source)} != set(content):
        raise ValueError
    texts = [content[name] for name in ("feature", "signal", "labels")]
    lists, amplitude = [content[name] for name in ("fasta", "gff", "held_out")], content["amplitude"]
    if not all(text is None or isinstance(text, str) for text in texts) or type(amplitude) not in (int, float):
        raise ValueError
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in lists):
        raise ValueError
    content["code"] = GeneticCode(content["code"]["number"], tuple(content["code"]["starts"]))
    pairs = ((content["fasta"], content["gff"]), (content["signal"], content["labels"]))
    if [all(pair) for pair in pairs] != [any(pair) for pair in pairs] or all(pairs[0]) == all(pairs[1]):
        raise ValueError
    feature = content["feature"]
    if not 0 < amplitude < inf or len(lists[0]) != len(lists[1]):
        raise ValueError
    if feature is not None and not (feature.strip() and feature.isprintable()):  # GFF3 could not hold it
        raise ValueError
    return Source(**content | {name: tuple(content[name]) for name in ("fasta", "gff", "held_out")})


def open_source(source: Source, share: float) -> Opened:
    """Read, with `share` held out."""
    data = read_data(source, share)
    return Opened(replace(source, feature=data.feature), data)


def read_data(source: Source, share: float) -> LabelledData:
    """What is trained on and what is held out: the sequences that were named, else the last `share` of everything."""
    data = _genome(source, share) if source.fasta else _signal(source, share)
    for recordings, which in ((data.training, "to train on"), (data.validation, "held out")):
        if not any((piece > 0).any() for each in recordings for _, piece in pieces(each.labels)):
            raise TapelessError(
                f"all that is {which} has no label but 0, so nothing can be told apart: hold out another part."
            )
    return data


def _signal(source: Source, share: float) -> LabelledData:
    signal_path, labels_path = Path(source.signal or ""), Path(source.labels or "")
    signal = checked_signal(open_array(signal_path), str(signal_path))
    found = checked_labels(open_array(labels_path), len(signal), MOST_CLASSES, str(labels_path))
    highest = max(int(piece.max()) for _, piece in pieces(found))
    sides = hold_out([Recording(signal, found)], share)
    training, validation = (
        [Recording(Scaled(each.signal, source.amplitude), each.labels) for each in side] for side in sides
    )
    return LabelledData(training, validation, max(2, highest + 1))


def _genome(source: Source, share: float) -> LabelledData:
    every, feature, notes = _annotated(source)
    files = {part.name: Path(path).name.split(".")[0] for path, parts in every.items() for part in parts}
    for name in source.held_out:
        if name not in files and name not in files.values():
            raise unknown("sequence", name, (*files, *dict.fromkeys(files.values())))
    held = {name for name, file in files.items() if name in source.held_out or file in source.held_out}
    if held == set(files):
        raise TapelessError("all sequences are held out, and none is left to train on: name fewer with --held-out.")
    training: list[LabelledSequence] = []
    held_out: list[LabelledSequence] = []
    for part in (part for parts in every.values() for part in parts):
        length = len(part.bases)
        if all((labels < 0).all() for labels in part.labels.values()):  # the annotation never names it
            if part.name in held:
                raise TapelessError(f"the annotation says nothing of sequence {part.name!r}: hold out another one.")
            continue
        cut = _cut(part.name, length, share) if not held else 0 if part.name in held else length
        # Both strands are cut at the same base: the one's complement must not be trained on where the other is held out
        for side, first, last in ((training, 0, cut), (held_out, cut, length)):
            if first < last:
                side.append(part.part(first, last))
    seen, calibration = _kept_for_calibration(training)
    return LabelledData(
        _strands(seen), _strands(held_out), 2, feature, tuple(training), tuple(calibration), tuple(held_out), notes
    )


def _annotated(source: Source) -> tuple[dict[str, list[LabelledSequence]], str, tuple[str, ...]]:
    """The sequences of each FASTA file with labels and genes, the type of feature, and what a user should know."""
    every: dict[str, list[LabelledSequence]] = {}
    feature, notes, names = source.feature, list[str](), set[str]()
    for fasta, gff in zip(source.fasta, source.gff, strict=True):
        bases = {record.name: record.bases for record in read_records(Path(fasta))}
        twice = names & bases.keys()
        if twice:
            raise TapelessError(f"{fasta} has a sequence {min(twice)!r}, as an earlier file has: rename one of them.")
        names |= bases.keys()
        lengths = {name: len(letters) for name, letters in bases.items()}
        annotation = read_annotation(Path(gff), lengths, feature)
        feature = annotation.feature
        known = labels(annotation, lengths)
        every[fasta] = [
            LabelledSequence(
                name,
                letters,
                {strand: known[name, strand] for strand in STRANDS},
                tuple(gene.ended(letters, source.code) for gene in annotation.genes.get(name, ())),
            )
            for name, letters in bases.items()
        ]
        notes += annotation.notes if len(source.fasta) == 1 else [f"{gff}: {note}" for note in annotation.notes]
    assert feature is not None
    return every, feature, tuple(notes)


def _kept_for_calibration(
    training: Sequence[LabelledSequence],
) -> tuple[Sequence[LabelledSequence], list[LabelledSequence]]:
    """The beginnings and the ends of the training parts; all of them for both where there is too little to divide."""
    cuts = [round((1 - CALIBRATED) * len(each.bases)) for each in training]
    seen = [each.part(0, cut) for each, cut in zip(training, cuts, strict=True) if cut]
    rest = [each.part(cut, len(each.bases)) for each, cut in zip(training, cuts, strict=True)]
    sides = [[labels for each in side for labels in each.labels.values()] for side in (seen, rest)]
    enough = all(any((labels == number).any() for labels in side) for side in sides for number in (0, 1))
    return (seen, rest) if enough else (training, list(training))


def _strands(parts: Sequence[LabelledSequence]) -> list[Recording]:
    return [recording for part in parts for recording in part.recordings()]


def _cut(name: str, length: int, share: float) -> int:
    cut = length - max(1, round(share * length))
    if cut < 1:
        raise TapelessError(
            f"sequence {name!r} has {length} bases, of which none is left when {share:g} is held out: "
            f"leave it out, or hold out whole sequences with --held-out."
        )
    return cut
