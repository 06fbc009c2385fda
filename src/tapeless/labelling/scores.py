"""How well a labelling run labels what was held out, and of a genome, whether it does better than simple rules.

A model that was trained with class weights says yes too often. Its probabilities are divided by the weights and made
to sum to 1 again, which is what Bayes' rule asks for; of two classes, the threshold is then the one with the highest
F1 on a part of the training data, and so are, of a genome, the least length of a stretch and the gaps that are closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.plain import parse_json, read_plain
from tapeless.labelling.genome import baseline, open_frames
from tapeless.labelling.genome.baseline import Baseline
from tapeless.labelling.genome.gff import Key
from tapeless.labelling.genome.intervals import runs
from tapeless.labelling.genome.output import FeatureKind, Segmentation, find_stretches, writing
from tapeless.labelling.genome.scores import Matched, StretchScores, base_score, half_in_common, stretch_scores
from tapeless.labelling.genome.scores import total as total_score
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.predict import predict
from tapeless.labelling.signal.scores import Score, Scores, picture
from tapeless.labelling.signal.store import Recording
from tapeless.labelling.source import LARGEST, Opened, Source, by_name
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.task import Progress

SCORES = "scores.json"
VERSION = 1
CHOSEN_ON = 200_000  # positions of the training data, that the threshold and the cut are chosen on
SHORTEST, GAPS = (30, 60, 100, 150, 200, 300), (10, 30, 100)  # tried, in bases
NEARLY = 0.02  # how far below the best F1 a cut is still as good: some dozens of stretches tell no finer
HALF = 0.5
CODON_STATISTICS, OPEN_FRAMES = "codon statistics", "open frames"


@dataclass(frozen=True)
class LabelReport:
    """How well the held-out part was labelled: each class per position and, of a genome, stretch by stretch."""

    threshold: float | None  # None where there are more classes than two
    classes: tuple[Score, ...]
    average_precision: float | None
    feature: str | None = None  # of a genome, what the stretches are
    cut: Segmentation | None = None  # and how they were made
    stretches: dict[str, StretchScores] | None = None
    baselines: dict[str, Matched] | None = None  # of a genome, per base, of what needs no network
    shortest_open_frame: int | None = None  # in bases, of the rule by that name

    @property
    def better_than_baselines(self) -> bool | None:
        """By F1 per base; None where there is nothing to compare with."""
        return None if self.baselines is None else not self.no_better_than()

    def no_better_than(self) -> list[str]:
        """The baselines that reach the model's F1 per base, the best one first."""
        own = self.classes[1].f1 or 0.0
        reached = [(-each.f1, name) for name, each in (self.baselines or {}).items() if each.f1 >= own]
        return [name for _, name in sorted(reached)]

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "version": VERSION,
            "threshold": self.threshold,
            "classes": [asdict(each) for each in self.classes],
            "average_precision": self.average_precision,
            "feature": self.feature,
            "shortest": self.cut and self.cut.shortest,
            "gap": self.cut and self.cut.gap,
            "stretches": None,
            "baselines": None,
            "shortest_open_frame": self.shortest_open_frame,
            "better_than_baselines": self.better_than_baselines,
        }
        if self.baselines is not None:
            found["baselines"] = {name: _ratios(each) for name, each in self.baselines.items()}
        if self.stretches is not None:
            found["stretches"] = {
                strand: {kind: _ratios(getattr(each, kind)) for kind in ("exact", "half")}
                for strand, each in self.stretches.items()
            }
        return found


def _ratios(score: Matched) -> dict[str, Any]:
    return {"precision": score.precision, "recall": score.recall, "f1": score.f1, **asdict(score)}


def probabilities(
    model: Model, signal: Any, features: Features, progress: Callable[[int], None] | None = None
) -> Iterator[Array]:
    """Of each class at every position, piece by piece, corrected for the weights that the model was trained with."""
    weights = np.asarray(model.class_weights or (1.0,))
    for start, values in predict(model, signal, features=features, batch=model.batch):
        shares = values / weights
        yield shares / shares.sum(axis=1, keepdims=True)
        if progress is not None:
            progress(start + len(values))


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


def choose_cut(threshold: float, answered: Sequence[Answered]) -> Segmentation:
    """By the F1 of stretches with half in common: of all that are nearly the best, the one that drops most and then
    fills least. A model is surer of what it was trained on, and says more short wrong things elsewhere."""
    f1 = {}
    for shortest, gap in product(SHORTEST, GAPS):
        cut = Segmentation(threshold, shortest, gap)
        f1[cut] = total_score(
            half_in_common(runs(each.labels == 1), _known(each.labels, _found(each.probabilities[:, 1], cut)))
            for each in answered
        ).f1
    best = max(f1.values())
    if not best:
        return Segmentation(threshold)
    return max((cut for cut in f1 if f1[cut] >= best - NEARLY), key=lambda cut: (cut.shortest, -cut.gap))


def _found(values: Array, cut: Segmentation) -> Array:
    """The stretches in one strand's probabilities, as intervals."""
    return np.array([(each.start, each.end) for each in find_stretches([values], cut)], np.int64).reshape(-1, 2)


def score(folder: Path, model: Model, opened: Opened, progress: Progress | None = None) -> LabelReport:
    """Label what was held out, write the scores and the precision–recall picture and, of whole sequences, what was
    found on them into the run's folder."""
    data, features = opened.data, opened.source.features
    answered = beginnings(model, data.training, features) if data.classes == 2 else []
    threshold = choose_threshold(answered) if answered else None
    cut = choose_cut(threshold, answered) if data.parts and threshold is not None else None
    scores = Scores(data.classes)
    total = sum(len(each.signal) for each in data.validation)
    done = 0
    kept: list[Array] = []  # of two classes, the second one's probability
    for each in data.validation:

        def report(here: int, before: int = done) -> None:
            if progress is not None:
                progress("labelling what was held out", before + here, total)

        values = np.concatenate(list(probabilities(model, each.signal, features, report)), dtype=np.float32)
        scores.add(each.labels, values)
        kept.append(values[:, 1])
        done += len(each.signal)
    classes = scores.per_class() if threshold is None else _at_threshold(data.validation, kept, threshold)
    stretches = None if cut is None else _stretches(folder, opened, kept, cut)
    numbers = [number for number in range(1, data.classes) if scores.of(number).positions]
    for number in numbers:
        name = "precision-recall.svg" if data.classes == 2 else f"precision-recall-{number}.svg"
        write_whole(folder / name, picture(scores.curve(number)).encode())
    areas = [scores.curve(number).area for number in numbers]
    found = LabelReport(threshold, classes, float(np.mean(areas)), data.feature, cut, stretches, *_baselines(opened))
    write_whole(folder / SCORES, json.dumps(found.document(), indent=2).encode() + b"\n")
    return found


def _baselines(opened: Opened) -> tuple[dict[str, Matched], int] | tuple[None, None]:
    """Learned from what the model was trained on, and scored on what was held out; and the shortest open frame."""
    if not opened.data.parts:
        return None, None
    held_out = by_name(opened.data.parts)
    found = {}
    if opened.statistics is not None:
        found[CODON_STATISTICS] = baseline.score(opened.statistics, *held_out)
    shortest = open_frames.fit(*by_name(opened.data.training_parts))
    found[OPEN_FRAMES] = open_frames.score(shortest, *held_out)
    return found, shortest


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


def _stretches(folder: Path, opened: Opened, kept: list[Array], cut: Segmentation) -> dict[str, StretchScores]:
    """`kept`: of each part the + strand and the − strand, in their own directions."""
    truth: dict[Key, Array] = {}
    predicted: dict[Key, Array] = {}
    parts = opened.data.parts
    strands = list(zip(kept[::2], kept[1::2], strict=True))
    for part, (plus, minus) in zip(parts, strands, strict=True):
        for strand, values in (("+", plus), ("-", minus[::-1])):
            truth[part.name, strand] = runs(part.labels[strand] == 1)
            predicted[part.name, strand] = _known(part.labels[strand], _found(values, cut))
    if opened.source.held_out:
        lengths = {part.name: len(part.bases) for part in parts}
        with writing(folder / "held-out", lengths, cut, feature_kind(opened.source, opened.statistics)) as writer:
            for part, (plus, minus) in zip(parts, strands, strict=True):
                writer.add(part.name, part.bases, [plus], [minus])
    return stretch_scores(truth, predicted)


def _known(labels: Array, stretches: Array) -> Array:
    """Without those that are unknown for the greater part: nobody can say whether they are right."""
    unknown = np.concatenate(([0], np.cumsum(labels < 0)))
    lengths = stretches[:, 1] - stretches[:, 0]
    kept: Array = stretches[2 * (unknown[stretches[:, 1]] - unknown[stretches[:, 0]]) <= lengths]
    return kept


def feature_kind(source: Source, statistics: Baseline | None) -> FeatureKind:
    """What the stretches are called that a run finds; runs that did not keep it called them exons."""
    return FeatureKind(source.feature or "exon", None if statistics is None else statistics.odds)


def read_cut(folder: Path) -> Segmentation:
    """The one that training chose; a threshold of a half where it was stopped before that."""
    path = folder / SCORES
    try:
        content = parse_json(read_plain(path, LARGEST))
        threshold = content["threshold"]
        chosen = {name: content[name] for name in ("shortest", "gap") if content[name] is not None}
        return Segmentation(HALF if threshold is None else float(threshold), **chosen)
    except FileNotFoundError:
        return Segmentation(HALF)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, TapelessError):
        raise TapelessError(f"{path} is damaged: put it back as it was, or train again.") from None
