"""How well predicted stretches agree with the true ones, one by one and base by base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tapeless.labelling.genome.dna import STRANDS
from tapeless.labelling.genome.gff import Key
from tapeless.ops.contract import Array


@dataclass(frozen=True)
class Matched:
    """Of so many predicted things and so many true ones, how many are both."""

    right: int
    predicted: int
    true: int

    @property
    def precision(self) -> float:
        """0 where nothing was predicted."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """0 where there was nothing to find."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def __add__(self, other: Matched) -> Matched:
        return Matched(self.right + other.right, self.predicted + other.predicted, self.true + other.true)


@dataclass(frozen=True)
class StretchScores:
    exact: Matched  # both ends are the true ones
    half: Matched  # what two stretches share is at least half of either


def stretch_scores(truth: Mapping[Key, Array], predicted: Mapping[Key, Array]) -> dict[str, StretchScores]:
    """Under '+', '-' and 'both', over all sequences. One on the wrong strand is a wrong one."""
    none = np.empty((0, 2), np.int64)
    scores = {}
    for strand in STRANDS:
        keys = sorted(key for key in truth.keys() | predicted.keys() if key[1] == strand)
        pairs = [(truth.get(key, none), predicted.get(key, none)) for key in keys]
        scores[strand] = StretchScores(
            total(_exact(true, found) for true, found in pairs),
            total(half_in_common(true, found) for true, found in pairs),
        )
    plus, minus = (scores[strand] for strand in STRANDS)
    return {**scores, "both": StretchScores(plus.exact + minus.exact, plus.half + minus.half)}


def base_score(truth: Array, predicted: Array) -> Matched:
    """Of two masks of the same bases."""
    right = int(np.count_nonzero((truth != 0) & (predicted != 0)))
    return Matched(right, int(np.count_nonzero(predicted)), int(np.count_nonzero(truth)))


def strands_score(
    predict: Callable[[Array, str], Array], bases: Mapping[str, Array], labels: Mapping[Key, Array]
) -> Matched:
    """Per base, over both strands of all sequences, where it is known what they are; `predict` takes the + strand's
    letters and a strand, and answers in the + strand's coordinates."""
    return total(
        base_score(labels[name, strand][known] == 1, predict(letters, strand)[known])
        for name, letters in bases.items()
        for strand in STRANDS
        for known in [labels[name, strand] >= 0]
    )


def total(scores: Iterable[Matched]) -> Matched:
    """The score of everything together, each thing counted once."""
    return sum(scores, Matched(0, 0, 0))


def _exact(truth: Array, predicted: Array) -> Matched:
    both = len({tuple(pair) for pair in truth.tolist()} & {tuple(pair) for pair in predicted.tolist()})
    return Matched(both, len(predicted), len(truth))


def half_in_common(truth: Array, predicted: Array) -> Matched:
    """Of stretches on one strand: found where what two share is at least half of either."""
    mine, theirs = _meeting(truth, predicted)
    starts = np.maximum(truth[theirs, 0], predicted[mine, 0])
    shared = np.minimum(truth[theirs, 1], predicted[mine, 1]) - starts
    longer = np.maximum(np.diff(truth[theirs], axis=1), np.diff(predicted[mine], axis=1)).ravel()
    # Stretches on a strand do not touch, so none has a half in common with two others: pairs can be counted.
    return Matched(int(np.count_nonzero(2 * shared >= longer)), len(predicted), len(truth))


def _meeting(truth: Array, predicted: Array) -> tuple[Array, Array]:
    """Index pairs (predicted, true) of all that share a base."""
    first = np.searchsorted(truth[:, 1], predicted[:, 0], side="right")
    behind = np.searchsorted(truth[:, 0], predicted[:, 1], side="left")
    counts = np.maximum(behind - first, 0)
    mine = np.repeat(np.arange(len(predicted)), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    return mine, np.arange(len(mine)) - begins + np.repeat(first, counts)
