"""How well a labelling run labels what was held out, and of a genome, whether it does better than simple rules.

A model of a signal that was trained with class weights says yes too often. Its probabilities are divided by the weights
and made to sum to 1 again, which is what Bayes' rule asks for; of two classes, the threshold is then the one with the
highest F1 on a part of the training data. A genome has a part that the network was not trained on: there its
probabilities are calibrated, the threshold is chosen, and a decoder of genes learns what they are worth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.files.disk import write_whole
from tapeless.labelling.genome import scores as rules
from tapeless.labelling.genome.decoder import LONGEST_PART, Annotated, GeneDecoder, learn
from tapeless.labelling.genome.dna import STRANDS, StrandSignal, digits_of
from tapeless.labelling.genome.found import Finder, Found, calibrated, find, write_found
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.intervals import runs
from tapeless.labelling.genome.output import CODING, writing
from tapeless.labelling.genome.scores import RULES, Agreement, Truth
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.predict import predict
from tapeless.labelling.signal.scores import Score, Scores, picture, reliability_picture
from tapeless.labelling.signal.store import Recording
from tapeless.labelling.source import LabelledSequence, Opened
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.task import Progress

SCORES = "scores.json"
VERSION = 1
CHOSEN_ON = 200_000  # positions of the training data, that the threshold is chosen on
HALF = 0.5


@dataclass(frozen=True)
class LabelReport:
    """How well the held-out part was labelled: each class per position; of a genome bases, stretches and genes."""

    threshold: float | None  # None where there are more classes than two, and where a decoder finds genes
    classes: tuple[Score, ...]
    average_precision: float
    reliability: list[tuple[float, float, int]]  # by bin: the probability told, the share that is true, positions
    feature: str | None = None  # of a genome, what is found
    agreement: Agreement | None = None
    baselines: dict[str, Agreement] = field(default_factory=dict)  # what needs no network, or no decoder
    least: dict[str, float] = field(default_factory=dict)  # the value that such a rule takes genes from
    gained: float | None = None  # by the network, of the log-likelihood of genes that it has not seen
    uses_network: bool = True

    @property
    def better_than_baselines(self) -> bool | None:
        """By F1 per base and by that of exact stretches; None where there is nothing to compare with."""
        return not self.no_better_than() if self.baselines else None

    def no_better_than(self) -> list[str]:
        """The baselines that reach the model's F1 in one or the other, the best one first."""
        if self.agreement is None:
            return []
        own = self.agreement
        reached = [
            (-each.exact.f1 - each.bases.f1, name)
            for name, each in self.baselines.items()
            if each.bases.f1 >= own.bases.f1 or each.exact.f1 >= own.exact.f1
        ]
        return [name for _, name in sorted(reached)]

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "threshold": self.threshold,
            "classes": [asdict(each) for each in self.classes],
            "average_precision": self.average_precision,
            "reliability": self.reliability,
            "feature": self.feature,
            **({} if self.agreement is None else self.agreement.document()),
            "baselines": {
                name: {**each.document(), "least": self.least[name]} for name, each in self.baselines.items()
            },
            "better_than_baselines": self.better_than_baselines,
            "uses_network": self.uses_network,
            "gained_by_network": self.gained,
        }


def probabilities(
    model: Model,
    signal: Any,
    features: Features,
    progress: Callable[[int], None] | None = None,
    step: int | None = None,
) -> Iterator[Array]:
    """Of each class at every position, piece by piece, corrected for the weights that the model was trained with."""
    weights = np.asarray(model.class_weights or (1.0,))
    for start, values in predict(model, signal, features=features, batch=model.batch, step=step):
        shares = values / weights
        yield shares / shares.sum(axis=1, keepdims=True)
        if progress is not None:
            progress(start + len(values))


def strand_probabilities(
    model: Model, letters: Array, features: Features, progress: Callable[[int], None] | None = None
) -> Array:
    """(2, bases) of class 1 on both strands, in the + strand's order. `progress` hears of bases of both, together."""
    found = np.empty((2, len(letters)), np.float32)
    for number, strand in enumerate(STRANDS):
        before = number * len(letters)
        told = None if progress is None else lambda here, before=before: progress(before + here)
        pieces = probabilities(model, StrandSignal(letters, strand), features, told, max(1, 3 * model.time // 4))
        found[number] = np.concatenate([piece[:, 1] for piece in pieces])[:: 1 - 2 * number]
    return found


@dataclass(frozen=True)
class Answered:
    """Labels of a recording, and what a model says of the same positions: (positions, classes)."""

    labels: Array
    probabilities: Array


def beginnings(model: Model, training: Sequence[Recording], features: Features) -> list[Answered]:
    """Of every training recording, as much as is chosen on."""
    share = CHOSEN_ON / sum(len(each.signal) for each in training)
    found = []
    for each in training:
        length = min(len(each.signal), max(model.time, round(share * len(each.signal))))
        pieces = list(probabilities(model, each.signal[:length], features))
        found.append(Answered(np.asarray(each.labels[:length]), np.concatenate(pieces, dtype=np.float32)))
    return found


def choose_threshold(answered: Sequence[Answered]) -> float:
    """Where F1 is highest; a half where nothing there is to be found."""
    scores = Scores(2)
    for each in answered:
        scores.add(each.labels, each.probabilities)
    if not scores.of(1).positions:
        return HALF
    curve = scores.curve(1)
    sums = np.maximum(curve.precision + curve.recall, 1e-300)
    threshold = float(curve.thresholds[np.argmax(curve.precision * curve.recall / sums)])
    return threshold if 0 < threshold < 1 else HALF


def score(folder: Path, model: Model, opened: Opened, progress: Progress | None = None) -> LabelReport:
    """Label what was held out, write the scores and pictures and, of whole sequences, what was found on them into the
    run's folder; of a genome also how to find more of it."""
    found = (_score_genome if opened.data.parts else _score_signal)(folder, model, opened, progress)
    write_whole(folder / SCORES, json.dumps(found.document(), indent=2).encode() + b"\n")
    return found


def _score_signal(folder: Path, model: Model, opened: Opened, progress: Progress | None) -> LabelReport:
    data, features = opened.data, opened.source.features
    threshold = choose_threshold(beginnings(model, data.training, features)) if data.classes == 2 else None
    scores = Scores(data.classes)
    total, done = sum(len(each.signal) for each in data.validation), 0
    for each in data.validation:
        report = _told(progress, done, total)
        values = np.concatenate(list(probabilities(model, each.signal, features, report)), dtype=np.float32)
        scores.add(each.labels, values)
        done += len(each.signal)
    classes = scores.per_class() if threshold is None else scores.at(threshold)
    return LabelReport(threshold, classes, _pictures(folder, scores), scores.reliability())


def _told(progress: Progress | None, before: int, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda here: progress("labelling what was held out", before + here, total)


def _pictures(folder: Path, scores: Scores) -> float:
    """Of each class that there is; and the mean average precision."""
    numbers = [number for number in range(1, scores.classes) if scores.of(number).positions]
    for number in numbers:
        name = "precision-recall.svg" if scores.classes == 2 else f"precision-recall-{number}.svg"
        write_whole(folder / name, picture(scores.curve(number)).encode())
    write_whole(folder / "reliability.svg", reliability_picture(scores.reliability()).encode())
    return float(np.mean([scores.curve(number).area for number in numbers]))


def _score_genome(folder: Path, model: Model, opened: Opened, progress: Progress | None) -> LabelReport:
    data, features = opened.data, opened.source.features
    assert data.feature is not None
    every = [*data.calibration, *data.parts]
    total, said, done = sum(len(part.bases) for part in every) * len(STRANDS), [], 0
    for part in every:
        said.append(strand_probabilities(model, part.bases, features, _told(progress, done, total)))
        done += said[-1].size
    unseen, held_out = said[: len(data.calibration)], said[len(data.calibration) :]
    finder = _finder(opened, unseen)
    finder.write(folder)
    found = [
        list(find(finder, part.bases, _given(values), cuts=part.cuts))
        for part, values in zip(data.parts, held_out, strict=True)
    ]
    scores, agreed = Scores(2), Agreement()
    for part, pieces in zip(data.parts, found, strict=True):
        told = np.concatenate([each.probabilities for each in pieces], axis=1)
        for strand, row in zip(STRANDS, told, strict=True):
            scores.add(part.labels[strand], np.stack([1 - row, row], axis=1))
        agreed += _agreement(truth_of(part, data.feature), pieces)
    if opened.source.held_out:
        _write(folder, opened, finder, found)
    baselines, least = ({}, {}) if finder.decoder is None else _baselines(opened, finder, unseen, held_out)
    return LabelReport(
        finder.threshold if finder.decoder is None else None,
        (),
        _pictures(folder, scores),
        scores.reliability(),
        data.feature,
        agreed,
        baselines,
        least,
        None if finder.decoder is None else finder.decoder.gained,
        finder.decoder is None or finder.decoder.uses_network,
    )


def _given(values: Array) -> Callable[[int, int], Array]:
    return lambda first, last: values[:, first:last]


def _finder(opened: Opened, unseen: Sequence[Array]) -> Finder:
    """`unseen`: probabilities of the parts that the network was not trained on."""
    data = opened.data
    assert data.feature is not None
    known = [part.labels[strand] for part in data.calibration for strand in STRANDS]
    numbers = calibrated(np.concatenate(known), np.concatenate([row for each in unseen for row in each]))
    if data.feature != CODING:
        rows = [numbers(row) for each in unseen for row in each]
        answered = [Answered(labels, np.stack([1 - row, row], axis=1)) for labels, row in zip(known, rows, strict=True)]
        return Finder(data.feature, numbers, choose_threshold(answered))
    finder = Finder(data.feature, numbers, 0.0)
    network = [
        _annotated(piece, (plus[first : first + len(piece.bases)], minus[first : first + len(piece.bases)]))
        for part, row in zip(data.calibration, unseen, strict=True)
        for plus, minus in [finder.odds(row)]
        for first, piece in _pieces(part)
    ]
    saw_all = sum(len(part.bases) for part in data.calibration) == sum(len(part.bases) for part in data.training_parts)
    decoder = learn(
        [_annotated(piece) for part in data.training_parts for _, piece in _pieces(part)],
        opened.source.code,
        [] if saw_all else network,
    )
    return Finder(data.feature, numbers, 0.0, decoder)


def _pieces(part: LabelledSequence) -> Iterator[tuple[int, LabelledSequence]]:
    """Of a long sequence one after the other, with where it begins."""
    for first in range(0, len(part.bases), LONGEST_PART):
        yield first, part.part(first, min(first + LONGEST_PART, len(part.bases)))


def _annotated(part: LabelledSequence, network: tuple[Array, Array] | None = None) -> Annotated:
    return Annotated(digits_of(part.bases), part.genes, (part.labels["+"], part.labels["-"]), network, part.cuts)


def truth_of(part: LabelledSequence, feature: str) -> Truth:
    if feature == CODING:
        stretches = [
            {exon for gene in part.genes if gene.strand == strand for exon in gene.exons} for strand in STRANDS
        ]
    else:
        stretches = [{(start, end) for start, end in runs(part.labels[strand] == 1).tolist()} for strand in STRANDS]
    genes = frozenset(gene.ends for gene in part.genes if feature == CODING)
    return Truth((part.labels["+"], part.labels["-"]), (frozenset(stretches[0]), frozenset(stretches[1])), genes)


def _agreement(truth: Truth, pieces: Sequence[Found]) -> Agreement:
    if pieces[0].stretches is not None:
        plus, minus = ([(start, end) for start, end in each.tolist()] for each in pieces[0].stretches)
        return rules.agreement(truth, (plus, minus))
    return rules.of_genes(truth, [gene for each in pieces for gene in each.genes])


def _write(folder: Path, opened: Opened, finder: Finder, found: Sequence[list[Found]]) -> None:
    lengths = {part.name: len(part.bases) for part in opened.data.parts}
    with writing(folder / "held-out", lengths, finder.feature, opened.source.code) as writer:
        for part, pieces in zip(opened.data.parts, found, strict=True):
            write_found(writer, part.name, part.bases, iter(pieces))


def _baselines(
    opened: Opened, finder: Finder, unseen: Sequence[Array], held_out: Sequence[Array]
) -> tuple[dict[str, Agreement], dict[str, float]]:
    """Learned from what was trained on, that of the network from what it has not seen, and scored on what was held
    out."""
    data, decoder = opened.data, finder.decoder
    assert decoder is not None
    sides = [
        _ruled(decoder, data.training_parts, None),
        *(
            _ruled(decoder, parts, [finder.odds(each) for each in values])
            for parts, values in ((data.calibration, unseen), (data.parts, held_out))
        ),
    ]
    found, least = {}, {}
    for name, feature in RULES.items():
        least[name] = rules.least_value(sides[feature == "network"][name])
        found[name] = rules.ruled(sides[2][name], least[name])
    return found, least


def _ruled(
    decoder: GeneDecoder, parts: Sequence[LabelledSequence], odds: Sequence[tuple[Array, Array]] | None
) -> dict[str, list[tuple[Truth, list[tuple[float, Gene]]]]]:
    """By rule what it finds on these parts, with the value of each."""
    found: dict[str, list[tuple[Truth, list[tuple[float, Gene]]]]] = {name: [] for name in RULES}
    for number, part in enumerate(parts):
        lattice = decoder.lattice(digits_of(part.bases), None if odds is None else odds[number], part.cuts)
        for name, feature in RULES.items():
            found[name].append((truth_of(part, CODING), rules.greedy(lattice, feature)))
    return found
