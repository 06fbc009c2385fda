"""How well positions were labelled: precision, recall and F1 of each class, and the curve of the one over the other.

Everything is counted as it comes, so the memory is that of the counts. For the curve, probabilities are counted in
bins of 1/16384; a power of two, so that "at least the threshold" is exact for every threshold on a bin's edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.labelling.signal.checks import checked_labels
from tapeless.models.config import check_size
from tapeless.ops.contract import Array
from tapeless.pictures import svg
from tapeless.pictures.svg import OURS, QUIET, Panel

BINS = 1 << 14
ROUNDING = 1e-6  # how far beyond 0 … 1 a probability may lie: so little of a bin that it is counted as 0 or 1
TENTHS = 10
MOST_SCORED = 1 << 10  # each takes 256 KiB of counts


@dataclass(frozen=True)
class Score:
    """Of one class: what was said to be it and is, over what was said to be it (precision), over what is it (recall).

    `positions` is how many are it. None where a denominator is zero.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    positions: int


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """Precision and recall of "at least this probability", from the highest threshold that anything reaches down to
    the lowest, where recall is 1. `share` is the precision of saying yes everywhere."""

    thresholds: Array
    precision: Array
    recall: Array
    share: float

    @property
    def area(self) -> float:
        """Average precision: each precision times the recall that it adds, without interpolation."""
        return float(np.sum(self.precision * np.diff(self.recall, prepend=0.0)))


class Scores:
    """Labels beside probabilities, added up piece by piece."""

    def __init__(self, classes: int) -> None:
        check_size("classes", classes)
        if classes > MOST_SCORED:
            raise TapelessError(f"scores are kept for up to {MOST_SCORED:,} classes, not for {classes:,}.")
        self.classes = int(classes)
        self.confusion = np.zeros((classes, classes), np.int64)  # rows: what it is; columns: what was said
        self._yes = np.zeros((classes, BINS + 1), np.int64)  # probabilities of a class where it is right
        self._all = np.zeros((classes, BINS + 1), np.int64)  # and everywhere

    def add(self, labels: Any, probabilities: Any) -> None:
        """Labels (n), −1 where not known, and probabilities (n, classes). Of equal ones the lower class is said."""
        values = self._checked(probabilities)
        labels = np.asarray(checked_labels(labels, len(values), self.classes)).astype(np.int64)
        values, labels = values[labels >= 0], labels[labels >= 0]
        pairs = labels * self.classes + values.argmax(axis=1)
        self.confusion += np.bincount(pairs, minlength=self.classes**2).reshape(self.confusion.shape)
        bins = (values * BINS).astype(np.int64)
        for number in range(self.classes):
            self._yes[number] += np.bincount(bins[labels == number, number], minlength=BINS + 1)
            self._all[number] += np.bincount(bins[:, number], minlength=BINS + 1)

    def _checked(self, probabilities: Any) -> Array:
        try:
            values = np.asarray(probabilities, np.float64)
        except (TypeError, ValueError):
            raise TapelessError("probabilities must be an array of real numbers.") from None
        if values.ndim != 2 or values.shape[1] != self.classes or not len(values):
            wanted = ("positions", self.classes)
            raise TapelessError(f"probabilities must have the shape {spelled(wanted)}, not {spelled(values.shape)}.")
        fine = (values >= -ROUNDING) & (values <= 1 + ROUNDING)
        if not fine.all():
            where = tuple(int(index) for index in np.argwhere(~fine)[0])
            raise TapelessError(f"probabilities hold {values[where]} at {where}; they must lie between 0 and 1.")
        return values

    @property
    def accuracy(self) -> float | None:
        """The share of positions whose class was said."""
        return _ratio(int(np.trace(self.confusion)), int(self.confusion.sum()))

    def of(self, number: int) -> Score:
        """Of one class."""
        right = int(self.confusion[number, number])
        said, true = int(self.confusion[:, number].sum()), int(self.confusion[number].sum())
        return Score(_ratio(right, said), _ratio(right, true), _ratio(2 * right, said + true), true)

    def per_class(self) -> tuple[Score, ...]:
        """Of every class in turn."""
        return tuple(self.of(number) for number in range(self.classes))

    def at(self, threshold: float) -> tuple[Score, ...]:
        """Of two classes, where the second one is said from a probability on."""
        least = int(np.ceil(threshold * BINS))
        right, said = int(self._yes[1][least:].sum()), int(self._all[1][least:].sum())
        true, everything = int(self._yes[1].sum()), int(self._all[1].sum())
        others = everything - true - said + right  # neither said nor true
        return tuple(
            Score(_ratio(r, s), _ratio(r, t), _ratio(2 * r, s + t), t)
            for r, s, t in ((others, everything - said, everything - true), (right, said, true))
        )

    def reliability(self) -> list[tuple[float, float, int]]:
        """Of all classes but the first, by tenths of the probability: its mean, what share is true, how many."""
        found = []
        yes, every = self._yes[1:].sum(axis=0), self._all[1:].sum(axis=0)
        for tenth in range(TENTHS):
            here = slice(tenth * (BINS + 1) // TENTHS, (tenth + 1) * (BINS + 1) // TENTHS)
            count = int(every[here].sum())
            if count:
                mean = float((every[here] * np.arange(BINS + 1)[here]).sum() / count / BINS)
                found.append((mean, int(yes[here].sum()) / count, count))
        return found

    def curve(self, number: int) -> PrecisionRecallCurve:
        """Of one class against all others."""
        if isinstance(number, bool) or number not in range(self.classes):
            raise TapelessError(f"there are the classes 0 to {self.classes - 1}, not {number!r}.")
        true, everything = int(self._yes[number].sum()), int(self._all[number].sum())
        if not true:
            raise TapelessError(f"no label is {number}, so that class has no precision–recall curve.")
        filled = np.flatnonzero(self._all[number])[::-1]
        right, said = np.cumsum(self._yes[number][filled]), np.cumsum(self._all[number][filled])
        return PrecisionRecallCurve(filled / BINS, right / said, right / true, true / everything)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def picture(curve: PrecisionRecallCurve) -> str:
    """The curve as an SVG: precision over recall, and dashed what saying yes everywhere gives."""
    panel = Panel(f"average precision {curve.area:.4f}", 50, 50, 280, 280, (0.0, 1.0), (0.0, 1.0))
    points = [*zip(curve.recall.tolist(), curve.precision.tolist(), strict=True)]
    parts = panel.frame((0, 0.5, 1), (0, 0.5, 1), "precision over recall")
    parts += panel.line([(0.0, curve.share), (1.0, curve.share)], QUIET, dash="4 4", dots=False)
    parts += panel.line([(0.0, points[0][1]), *points], OURS, dots=False)
    return svg.picture(380, 380, parts)


def reliability_picture(reliability: list[tuple[float, float, int]]) -> str:
    """What is true over what was told, as an SVG; dashed, where both are the same."""
    panel = Panel("true over told", 50, 50, 280, 280, (0.0, 1.0), (0.0, 1.0))
    parts = panel.frame((0, 0.5, 1), (0, 0.5, 1), "share that is true over probability told")
    parts += panel.line([(0.0, 0.0), (1.0, 1.0)], QUIET, dash="4 4", dots=False)
    parts += panel.line([(told, true) for told, true, _ in reliability], OURS)
    return svg.picture(380, 380, parts)
