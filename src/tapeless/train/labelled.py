"""Runs that label signals: where signal and labels come from, what is held out, and how well the model labels it.

A model that was trained with class weights says yes too often. Its probabilities are divided by the weights and made
to sum to 1 again, which is what Bayes' rule asks for; of two classes, the threshold is then the one with the highest
F1 on a part of the training data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files import parse_json, read_plain
from tapeless.genome.dna import STRANDS, StrandSignal
from tapeless.genome.fasta import read_records
from tapeless.genome.gff import Key, labels, read_annotation
from tapeless.genome.intervals import runs
from tapeless.genome.output import Cut, find_exons, writing
from tapeless.genome.scores import ExonScores, base_score, exon_scores
from tapeless.model import Model
from tapeless.models.config import Config
from tapeless.models.presets import preset
from tapeless.ops.contract import Array
from tapeless.signal.checks import checked_labels, checked_scales, checked_signal, pieces
from tapeless.signal.npy import open_array
from tapeless.signal.predict import predict
from tapeless.signal.scores import Score, Scores, picture
from tapeless.signal.store import MOST_CLASSES, Recording
from tapeless.signal.task import Labelled, class_weights, hold_out
from tapeless.signal.wavelet import SCALES
from tapeless.train import run
from tapeless.train.disk import write_whole
from tapeless.train.loop import Trainer
from tapeless.train.metrics import Recorder
from tapeless.train.run import Run
from tapeless.train.session import Progress, Session, make_model
from tapeless.train.settings import LABELLED, Request, Settings

SOURCE, SCORES = "source.json", "scores.json"
PRESET = "sunfish"
DEFAULTS: dict[str, Any] = {
    "batch": 16, "time": 256, "steps": 1000, "lr": 1.5e-3, "schedule": "cosine", "clip": 1.0,
}  # fmt: skip
LARGEST = 1 << 24  # bytes of a run's own descriptions
THRESHOLD_POSITIONS = 200_000  # of the training data, that the threshold is chosen on
HALF = 0.5


@dataclass(frozen=True)
class Source:
    """What a run learns from: a genome with its annotation, or a signal with its labels."""

    fasta: str | None = None
    gff: str | None = None
    feature: str | None = None
    held_out: tuple[str, ...] = ()  # names of sequences
    signal: str | None = None
    labels: str | None = None
    amplitude: float = 1.0  # what the signal is multiplied by, so that it has unit size
    scales: tuple[float, ...] = SCALES

    def write(self, folder: Path) -> None:
        write_whole(folder / SOURCE, json.dumps(asdict(self), indent=2).encode() + b"\n")


@dataclass(frozen=True)
class Part:
    """A stretch of a sequence, and its exonic bases by strand, both in the + strand's coordinates."""

    name: str
    bases: Array
    exonic: Mapping[str, Array]

    def recordings(self) -> list[Recording]:
        """Each strand in its own direction."""
        return [
            Recording(StrandSignal(self.bases, strand), self.exonic[strand][:: 1 if strand == "+" else -1])
            for strand in STRANDS
        ]


@dataclass(frozen=True)
class Data:
    """Recordings on both sides. Of a genome, `parts` are what the held-out recordings are the strands of."""

    training: list[Recording]
    validation: list[Recording]
    classes: int
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class Report:
    """How well the held-out part was labelled: each class per position and, of a genome, exon by exon."""

    threshold: float | None  # None where there are more classes than two
    classes: tuple[Score, ...]
    average_precision: float | None
    exons: dict[str, ExonScores] | None

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        if self.exons is not None:
            found["exons"] = {
                strand: {kind: _ratios(getattr(each, kind)) for kind in ("exact", "half")}
                for strand, each in self.exons.items()
            }
        return found


def _ratios(score: Any) -> dict[str, Any]:
    return {"precision": score.precision, "recall": score.recall, "f1": score.f1, **asdict(score)}


def make_source(
    *, fasta: Path | None, gff: Path | None, feature: str | None, held_out: Sequence[str], signal: Path | None,
    labels: Path | None, scales: Sequence[float],
) -> Source:  # fmt: skip
    """One of the two kinds, whole, with absolute paths; the signal's size is measured."""
    scales = checked_scales(scales)
    dna, other = (fasta, gff), (signal, labels)
    if any(dna) == any(other):
        raise TapelessError("give a genome with --fasta and --gff, or a signal with --signal and --labels.")
    for pair, names in ((dna, ("--fasta", "--gff")), (other, ("--signal", "--labels"))):
        if any(pair) and not all(pair):
            raise TapelessError(f"{names[0]} and {names[1]} belong together: {names[pair.index(None)]} is missing.")
    if fasta is not None:
        return Source(_absolute(fasta), _absolute(gff), feature, tuple(held_out), scales=scales)
    if feature is not None or held_out:
        what = "--held-out" if held_out else "--feature"
        raise TapelessError(f"{what} names something in a genome, and here is a signal: leave it out.")
    assert signal is not None
    amplitude = _amplitude(checked_signal(open_array(signal), str(signal)), signal)
    return Source(signal=_absolute(signal), labels=_absolute(labels), amplitude=amplitude, scales=scales)


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
    except (ValueError, TypeError, KeyError, TapelessError):
        raise TapelessError(f"{path} is damaged: put it back as it was, or train again.") from None


def _source(content: dict[str, Any]) -> Source:
    """ValueError, or what Python raises of itself, where it is none."""
    if {each.name for each in fields(Source)} != set(content):
        raise ValueError
    texts = [content[name] for name in ("fasta", "gff", "feature", "signal", "labels")]
    held_out, amplitude = content["held_out"], content["amplitude"]
    if not all(text is None or isinstance(text, str) for text in texts) or not isinstance(held_out, list):
        raise ValueError
    if not all(isinstance(name, str) for name in held_out) or not isinstance(amplitude, int | float):
        raise ValueError
    pairs = ((content["fasta"], content["gff"]), (content["signal"], content["labels"]))
    if [all(pair) for pair in pairs] != [any(pair) for pair in pairs] or all(pairs[0]) == all(pairs[1]):
        raise ValueError
    if isinstance(amplitude, bool) or not 0 < amplitude < float("inf"):
        raise ValueError
    return Source(**{**content, "held_out": tuple(held_out), "scales": checked_scales(content["scales"])})


def read_data(source: Source, share: float) -> Data:
    """What is trained on and what is held out: the sequences that were named, else the last `share` of everything."""
    data = _genome(source, share) if source.fasta else _signal(source, share)
    for recordings, which in ((data.training, "to train on"), (data.validation, "held out")):
        if not any((piece > 0).any() for each in recordings for _, piece in pieces(each.labels)):
            raise TapelessError(
                f"all that is {which} has no label but 0, so nothing can be told apart: hold out another part."
            )
    return data


def _signal(source: Source, share: float) -> Data:
    signal_path, labels_path = Path(source.signal or ""), Path(source.labels or "")
    signal = checked_signal(open_array(signal_path), str(signal_path))
    found = checked_labels(open_array(labels_path), len(signal), MOST_CLASSES, str(labels_path))
    highest = max(int(piece.max()) for _, piece in pieces(found))
    sides = hold_out([Recording(signal, found)], share)
    training, validation = (
        [Recording(Scaled(each.signal, source.amplitude), each.labels) for each in side] for side in sides
    )
    return Data(training, validation, max(2, highest + 1))


def _genome(source: Source, share: float) -> Data:
    bases = {record.name: record.bases for record in read_records(Path(source.fasta or ""))}
    lengths = {name: len(letters) for name, letters in bases.items()}
    for name in source.held_out:
        if name not in lengths:
            raise unknown("sequence", name, lengths)
    if set(source.held_out) == set(lengths):
        raise TapelessError("all sequences are held out, and none is left to train on: name fewer with --held-out.")
    annotation = read_annotation(Path(source.gff or ""), lengths, source.feature)
    exonic = labels(annotation, lengths)
    training: list[Part] = []
    held_out: list[Part] = []
    for name, length in lengths.items():
        cut = _cut(name, length, share) if not source.held_out else 0 if name in source.held_out else length
        # Both strands are cut at the same base: the one's complement must not be trained on where the other is held out
        for side, first, last in ((training, 0, cut), (held_out, cut, length)):
            if first < last:
                here = {strand: exonic[name, strand][first:last] for strand in STRANDS}
                side.append(Part(name, bases[name][first:last], here))
    return Data(_strands(training), _strands(held_out), 2, tuple(held_out), annotation.notes)


def _strands(parts: Sequence[Part]) -> list[Recording]:
    return [recording for part in parts for recording in part.recordings()]


def _cut(name: str, length: int, share: float) -> int:
    cut = length - max(1, round(share * length))
    if cut < 1:
        raise TapelessError(
            f"sequence {name!r} has {length} bases, of which none is left when {share:g} is held out: "
            f"leave it out, or hold out whole sequences with --held-out."
        )
    return cut


def start(made: Run, source: Source, settings: Settings, model: Mapping[str, Any]) -> tuple[Session, Data]:
    """A training in a run folder that was just made; a refusal leaves it to whoever made it to remove."""
    chosen = {name: value for name, value in DEFAULTS.items() if getattr(settings, name) is None}
    if settings.epochs is not None:
        chosen.pop("steps", None)
    settings = replace(settings, data=LABELLED, tokenizer="none", **chosen)
    settings.validate()
    plain = preset(PRESET)
    context = max(plain.context, settings.time or 0)
    # Where memory is no matter, computing a block twice would only cost time.
    shape = {"recompute": False, "context": context, "features": 2 * len(source.scales), **model}
    plain.override(**shape)  # refuses what does not fit before anything is read
    data = read_data(source, settings.validation)
    every = np.concatenate([np.asarray(each.labels, np.int16) for each in data.training])
    changes = {**shape, "vocab": data.classes, "class_weights": class_weights(every, data.classes)}
    request = Request(PRESET, changes, settings)
    config = plain.override(**changes)
    trainer = Trainer(make_model(request, config), _task(source, data, settings, config), settings)
    source.write(made.folder)
    run.write_configuration(made, request, config)
    return Session(made, request, trainer, Recorder(made.folder), list(data.notes)), data


def resumed_task(made: Run, settings: Settings, config: Config) -> Labelled:
    source = read_source(made.folder)
    return _task(source, read_data(source, settings.validation), settings, config)


def _task(source: Source, data: Data, settings: Settings, config: Config) -> Labelled:
    return Labelled(
        config, data.training, data.validation, time=settings.time or 1, seed=settings.seed, scales=source.scales
    )


def probabilities(
    model: Model, signal: Any, scales: Sequence[float], progress: Callable[[int], None] | None = None
) -> Iterator[Array]:
    """Of each class at every position, piece by piece, corrected for the weights that the model was trained with."""
    weights = np.asarray(model.config.class_weights or (1.0,))
    for start, values in predict(model, signal, scales=scales, batch=model.batch):
        shares = values / weights
        yield shares / shares.sum(axis=1, keepdims=True)
        if progress is not None:
            progress(start + len(values))


def choose_threshold(model: Model, training: Sequence[Recording], scales: Sequence[float]) -> float:
    """Where F1 is highest on the beginning of every training recording; a half where nothing there is to be found."""
    share = THRESHOLD_POSITIONS / sum(len(each.signal) for each in training)
    scores = Scores(2)
    for each in training:
        length = min(len(each.signal), max(model.time, round(share * len(each.signal))))
        _add(scores, each.labels[:length], probabilities(model, each.signal[:length], scales))
    if not scores.of(1).positions:
        return HALF
    curve = scores.curve(1)
    sums = np.maximum(curve.precision + curve.recall, 1e-300)
    threshold = float(curve.thresholds[np.argmax(curve.precision * curve.recall / sums)])
    return threshold if 0 < threshold < 1 else HALF


def _add(scores: Scores, found: Any, coming: Iterator[Array]) -> None:
    first = 0
    for piece in coming:
        scores.add(found[first : first + len(piece)], piece)
        first += len(piece)


def score(made: Run, model: Model, source: Source, data: Data, progress: Progress | None = None) -> Report:
    """Label what was held out, write the scores and the precision–recall picture and, of whole sequences, their exons
    into the run."""
    threshold = choose_threshold(model, data.training, source.scales) if data.classes == 2 else None
    scores = Scores(data.classes)
    total = sum(len(each.signal) for each in data.validation)
    done = 0
    kept: list[Array] = []  # of two classes, the second one's probability
    for each in data.validation:

        def report(here: int, before: int = done) -> None:
            if progress is not None:
                progress("labelling what was held out", before + here, total)

        values = np.concatenate(list(probabilities(model, each.signal, source.scales, report)), dtype=np.float32)
        scores.add(each.labels, values)
        kept.append(values[:, 1])
        done += len(each.signal)
    classes = scores.per_class() if threshold is None else _at_threshold(data.validation, kept, threshold)
    exons = _exons(made, source, data.parts, kept, Cut(threshold)) if data.parts and threshold is not None else None
    numbers = [number for number in range(1, data.classes) if scores.of(number).positions]
    for number in numbers:
        name = "precision-recall.svg" if data.classes == 2 else f"precision-recall-{number}.svg"
        write_whole(made.folder / name, picture(scores.curve(number)).encode())
    areas = [scores.curve(number).area for number in numbers]
    found = Report(threshold, classes, float(np.mean(areas)), exons)
    write_whole(made.folder / SCORES, json.dumps(found.document(), indent=2).encode() + b"\n")
    return found


def _at_threshold(validation: Sequence[Recording], kept: Sequence[Array], threshold: float) -> tuple[Score, ...]:
    found = []
    for number in (0, 1):
        pairs = []
        for each, values in zip(validation, kept, strict=True):
            known = np.asarray(each.labels) >= 0
            said = (values >= threshold) == (number == 1)
            pairs.append((np.asarray(each.labels)[known] == number, said[known]))
        here = base_score(np.concatenate([true for true, _ in pairs]), np.concatenate([said for _, said in pairs]))
        none = not here.predicted and not here.true
        precision = here.precision if here.predicted else None
        recall = here.recall if here.true else None
        found.append(Score(precision, recall, None if none else here.f1, here.true))
    return tuple(found)


def _exons(made: Run, source: Source, parts: Sequence[Part], kept: list[Array], cut: Cut) -> dict[str, ExonScores]:
    """`kept`: of each part the + strand and the − strand, in their own directions."""
    truth: dict[Key, Array] = {}
    predicted: dict[Key, Array] = {}
    strands = list(zip(kept[::2], kept[1::2], strict=True))
    for part, (plus, minus) in zip(parts, strands, strict=True):
        for strand, values in (("+", plus), ("-", minus[::-1])):
            found = [(exon.start, exon.end) for exon in find_exons([values], cut)]
            truth[part.name, strand] = runs(part.exonic[strand])
            predicted[part.name, strand] = np.array(found, np.int64).reshape(-1, 2)
    if source.held_out:
        with writing(made.folder / "held-out", {part.name: len(part.bases) for part in parts}, cut) as writer:
            for part, (plus, minus) in zip(parts, strands, strict=True):
                writer.add(part.name, [plus], [minus])
    return exon_scores(truth, predicted)


def read_threshold(folder: Path) -> float:
    """The one that training chose; a half where it was stopped before that."""
    try:
        threshold = parse_json(read_plain(folder / SCORES, LARGEST))["threshold"]
        return HALF if threshold is None else Cut(float(threshold)).threshold
    except FileNotFoundError:
        return HALF
    except OSError as error:
        raise TapelessError(f"cannot read {folder / SCORES}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, TapelessError):
        raise TapelessError(f"{folder / SCORES} is damaged: give --threshold, or train again.") from None
