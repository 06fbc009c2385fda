"""The codon-statistics baseline: how much likelier a codon is inside a feature than outside, summed over a window.

For each base, the log-odds of the codons in a window around it are summed in each of the three frames, and the best
frame counts. The log-odds, the width of the window and the threshold are learned from annotated sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tapeless.labelling.genome.codons import FRAMES, codon_indices, learned_odds, strided_sums
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.gff import Key
from tapeless.labelling.genome.scores import Matched, strands_score
from tapeless.ops.contract import Array

WINDOWS = (60, 90, 120, 180, 240)
BINS = 4096  # thresholds tried, evenly over the range of the scores
PIECE = 1 << 20  # bases scored in one go


@dataclass(frozen=True)
class Baseline:
    odds: Array  # (65,) log-odds by codon, 0 for those with an ambiguous letter
    window: int
    threshold: float


def fit(bases: Mapping[str, Array], labels: Mapping[Key, Array]) -> Baseline | None:
    """Learned from the letters of sequences and, by sequence and strand, the label of each base: 1, 0, or −1 where it
    is not known. All in the + strand's coordinates. None where no codon lies inside a feature, or none outside."""
    strands = list(_strands(bases, labels))
    odds = learned_odds(strands)
    if odds is None:
        return None
    best = max((_best_threshold(strands, odds, window) for window in WINDOWS), key=lambda each: each[0])
    return Baseline(odds, best[1], best[2])


def predict(baseline: Baseline, bases: Array, strand: str) -> Array:
    """uint8, 1 where a base is predicted to be in a feature, in the + strand's coordinates; `bases` are the + strand's
    letters."""
    codons = codon_indices(bases if strand == "+" else opposite_bases(bases))
    found = np.concatenate(
        [each >= baseline.threshold for each in _window_scores(codons, baseline.odds, baseline.window)]
    ).astype(np.uint8)
    return found if strand == "+" else found[::-1]


def score(baseline: Baseline, bases: Mapping[str, Array], labels: Mapping[Key, Array]) -> Matched:
    """Per base, over both strands of all sequences, where it is known what they are."""
    return strands_score(lambda letters, strand: predict(baseline, letters, strand), bases, labels)


def _strands(bases: Mapping[str, Array], labels: Mapping[Key, Array]) -> Iterator[tuple[Array, Array]]:
    """Codons and labels of every strand, both in its own direction."""
    for name, letters in bases.items():
        yield codon_indices(letters), labels[name, "+"]
        yield codon_indices(opposite_bases(letters)), labels[name, "-"][::-1]


def _window_scores(codons: Array, odds: Array, window: int, piece: int = PIECE) -> Iterator[Array]:
    """For each base the mean log-odds per codon in the window around it, cut off at the ends, in the best frame; piece
    by piece."""
    for start in range(0, len(codons), piece):
        stop = min(start + piece, len(codons))
        begin, end = max(start - window // 2, 0), min(stop + window // 2, len(codons))
        sums = strided_sums(odds[codons[begin:end]])
        left = np.maximum(np.arange(start, stop) - window // 2, 0) - begin
        right = np.minimum(np.arange(start, stop) + window // 2, len(codons)) - begin
        best = np.full(stop - start, -np.inf)
        for frame in range(FRAMES):
            first = np.minimum(left + frame, right)
            count = (right - first) // FRAMES
            np.maximum(best, (sums[first + FRAMES * count] - sums[first]) / np.maximum(count, 1), out=best)
        yield best


def _best_threshold(strands: list[tuple[Array, Array]], odds: Array, window: int) -> tuple[float, int, float]:
    """The highest F1 that a threshold reaches with this window, the window, and the threshold."""
    edges = np.linspace(odds.min(), odds.max(), BINS + 1)
    everything = np.zeros(BINS)
    inside = np.zeros(BINS)
    for codons, labels in strands:
        first = 0
        for scores in _window_scores(codons, odds, window):
            here = labels[first : first + len(scores)]
            everything += np.histogram(scores[here >= 0], edges)[0]
            inside += np.histogram(scores[here == 1], edges)[0]
            first += len(scores)
    predicted = np.cumsum(everything[::-1])[::-1]
    right = np.cumsum(inside[::-1])[::-1]
    f1 = 2 * right / np.maximum(predicted + inside.sum(), 1)
    best = int(np.argmax(f1))
    return float(f1[best]), window, float(edges[best])
