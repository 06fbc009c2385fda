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
from tapeless.labelling.genome.baseline import Baseline, fit
from tapeless.labelling.genome.codons import CODONS
from tapeless.labelling.genome.dna import STRANDS, StrandSignal
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.gff import Key, labels, read_annotation
from tapeless.labelling.genome.output import FeatureKind
from tapeless.labelling.signal.checks import checked_labels, checked_scales, checked_signal, pieces
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.npy import open_array
from tapeless.labelling.signal.store import MOST_CLASSES, Recording
from tapeless.labelling.signal.task import hold_out
from tapeless.ops.contract import Array

SOURCE, STATISTICS = "source.json", "codons.json"
VERSION = 1  # of both files
LONGEST = 1 << 16  # bases in a window of codon statistics
# What a model reads at each position; a run keeps what it was made with.
GENOME_FAMILIES = ("wavelets", "bases", "frames", "opposite")
SIGNAL_FAMILIES = ("wavelets",)
LARGEST = 1 << 24  # bytes of a run's own descriptions


@dataclass(frozen=True)
class Source:
    """What a run learns from: a genome with its annotation, or a signal with its labels."""

    fasta: str | None = None
    gff: str | None = None
    feature: str | None = None  # the type of what is found; None only where it was not looked up yet
    held_out: tuple[str, ...] = ()  # names of sequences
    signal: str | None = None
    labels: str | None = None
    amplitude: float = 1.0  # what the signal is multiplied by, so that it has unit size
    features: Features = field(default_factory=Features)

    def write(self, folder: Path) -> None:
        content = {"version": VERSION, **asdict(self), "features": self.features.document()}
        write_whole(folder / SOURCE, json.dumps(content, indent=2).encode() + b"\n")


@dataclass(frozen=True)
class LabelledSequence:
    """A stretch of a sequence, and by strand the label of each base, both in the + strand's coordinates."""

    name: str
    bases: Array
    labels: Mapping[str, Array]  # 1 in a feature, 0 outside, −1 where it is not known

    def recordings(self) -> list[Recording]:
        """Each strand in its own direction."""
        return [
            Recording(StrandSignal(self.bases, strand), self.labels[strand][:: 1 if strand == "+" else -1])
            for strand in STRANDS
        ]


@dataclass(frozen=True)
class LabelledData:
    """Recordings on both sides. Of a genome, what they are the strands of, and what the features are called."""

    training: list[Recording]
    validation: list[Recording]
    classes: int
    feature: str | None = None
    training_parts: tuple[LabelledSequence, ...] = ()
    parts: tuple[LabelledSequence, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """What a run learns from, read: the data, and of a genome its codon statistics."""

    source: Source
    data: LabelledData
    statistics: Baseline | None


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
    fasta: Path | None,
    gff: Path | None,
    feature: str | None,
    held_out: Sequence[str],
    signal: Path | None,
    labels: Path | None,
    scales: Sequence[float],
) -> Source:
    """One of the two kinds, whole, with absolute paths; the signal's size is measured."""
    scales = checked_scales(scales)
    dna, other = (fasta, gff), (signal, labels)
    if any(dna) == any(other):
        raise TapelessError("give a genome with --fasta and --gff, or a signal with --signal and --labels.")
    for pair, names in ((dna, ("--fasta", "--gff")), (other, ("--signal", "--labels"))):
        if any(pair) and not all(pair):
            raise TapelessError(f"{names[0]} and {names[1]} belong together: {names[pair.index(None)]} is missing.")
    if fasta is not None:
        features = Features(GENOME_FAMILIES, scales)
        return Source(_absolute(fasta), _absolute(gff), feature, tuple(held_out), features=features)
    if feature is not None or held_out:
        what = "--held-out" if held_out else "--feature"
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
    texts = [content[name] for name in ("fasta", "gff", "feature", "signal", "labels")]
    held_out, amplitude = content["held_out"], content["amplitude"]
    if not all(text is None or isinstance(text, str) for text in texts) or not isinstance(held_out, list):
        raise ValueError
    if not all(isinstance(name, str) for name in held_out) or type(amplitude) not in (int, float):
        raise ValueError
    pairs = ((content["fasta"], content["gff"]), (content["signal"], content["labels"]))
    if [all(pair) for pair in pairs] != [any(pair) for pair in pairs] or all(pairs[0]) == all(pairs[1]):
        raise ValueError
    if not 0 < amplitude < inf:
        raise ValueError
    if content["feature"] is not None:
        FeatureKind(content["feature"])  # refuses what GFF3 could not hold
    return Source(**{**content, "held_out": tuple(held_out)})


def learned_statistics(data: LabelledData) -> Baseline | None:
    """Codon statistics of what a genome's run is trained on; None where it has no codons inside, or none outside."""
    return fit(*by_name(data.training_parts)) if data.training_parts else None


def by_name(parts: Sequence[LabelledSequence]) -> tuple[dict[str, Array], dict[Key, Array]]:
    """Letters by sequence, and labels by sequence and strand."""
    found = {(part.name, strand): part.labels[strand] for part in parts for strand in STRANDS}
    return {part.name: part.bases for part in parts}, found


def write_statistics(folder: Path, statistics: Baseline) -> None:
    content = {"version": VERSION, "window": statistics.window, "threshold": statistics.threshold}
    content["log_odds"] = statistics.odds[:CODONS].tolist()
    write_whole(folder / STATISTICS, json.dumps(content, indent=2).encode() + b"\n")


def read_statistics(folder: Path) -> Baseline | None:
    """Those that a run keeps; None if it labels a signal."""
    path = folder / STATISTICS
    try:
        content = parse_json(read_plain(path, LARGEST))
        odds, window = np.array(content["log_odds"], np.float64), content["window"]
        threshold = float(content["threshold"])
        sound = content["version"] == VERSION and odds.shape == (CODONS,) and np.isfinite([*odds, threshold]).all()
        if not sound or type(window) is not int or not 0 < window < LONGEST:
            raise ValueError
        return Baseline(np.append(odds, 0.0), window, threshold)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, OverflowError):
        raise TapelessError(f"{path} is damaged: put it back as it was, or train again.") from None


def open_source(source: Source, share: float, statistics: Baseline | None = None) -> Opened:
    """Read, with `share` held out. `statistics` are those that a run has kept; else they are learned."""
    data = read_data(source, share)
    return Opened(replace(source, feature=data.feature), data, statistics or learned_statistics(data))


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
    bases = {record.name: record.bases for record in read_records(Path(source.fasta or ""))}
    lengths = {name: len(letters) for name, letters in bases.items()}
    for name in source.held_out:
        if name not in lengths:
            raise unknown("sequence", name, lengths)
    if set(source.held_out) == set(lengths):
        raise TapelessError("all sequences are held out, and none is left to train on: name fewer with --held-out.")
    annotation = read_annotation(Path(source.gff or ""), lengths, source.feature)
    known = labels(annotation, lengths)
    training: list[LabelledSequence] = []
    held_out: list[LabelledSequence] = []
    for name, length in lengths.items():
        if all((known[name, strand] < 0).all() for strand in STRANDS):  # the annotation never names it
            if name in source.held_out:
                raise TapelessError(f"{source.gff} says nothing of sequence {name!r}: hold out another one.")
            continue
        cut = _cut(name, length, share) if not source.held_out else 0 if name in source.held_out else length
        # Both strands are cut at the same base: the one's complement must not be trained on where the other is held out
        for side, first, last in ((training, 0, cut), (held_out, cut, length)):
            if first < last:
                here = {strand: known[name, strand][first:last] for strand in STRANDS}
                side.append(LabelledSequence(name, bases[name][first:last], here))
    return LabelledData(
        _strands(training),
        _strands(held_out),
        2,
        annotation.feature,
        tuple(training),
        tuple(held_out),
        annotation.notes,
    )


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
