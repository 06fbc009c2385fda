"""The codon-statistics baseline: how much likelier a codon is inside an exon than outside, summed over a window.

For each base, the log-odds of the codons in a window around it are summed in each of the three frames, and the best
frame counts. The log-odds, the width of the window and the threshold are learned from annotated sequences. Exons come
without their frame, so it is estimated: a stop codon is rare in the right one, and from the table that this gives,
better frames and with them a better table are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tapeless.errors import TapelessError
from tapeless.genome.dna import STRANDS, opposite_bases
from tapeless.genome.gff import Key
from tapeless.genome.intervals import flipped, mask
from tapeless.genome.scores import Score, base_score, total
from tapeless.ops.contract import Array

CODONS = 64
UNKNOWN = CODONS  # a codon with an ambiguous letter
STOPS = ("TAA", "TAG", "TGA")
STOP_PENALTY = -5.0
ROUNDS = 4  # the frames of synthetic and real exons settle within three
WINDOWS = (60, 90, 120, 180, 240)
BINS = 4096  # thresholds tried, evenly over the range of the scores


@dataclass(frozen=True)
class Baseline:
    odds: Array  # (65,) log-odds by codon, 0 for those with an ambiguous letter
    window: int
    threshold: float


def fit(bases: Mapping[str, Array], exons: Mapping[Key, Array]) -> Baseline:
    """Learned from the letters of sequences and the intervals of their exons by sequence and strand."""
    strands = list(_strands(bases, exons))
    odds = _learned_odds(strands)
    if odds is None:
        raise TapelessError("the training sequences need bases in exons and bases outside: annotate more of them.")
    best = max((_best_threshold(strands, odds, window) for window in WINDOWS), key=lambda each: each[0])
    return Baseline(odds, best[1], best[2])


def predict(baseline: Baseline, bases: Array, strand: str) -> Array:
    """uint8, 1 where a base is predicted exonic, in the + strand's coordinates; `bases` are the + strand's letters."""
    codons = codon_indices(bases if strand == "+" else opposite_bases(bases))
    found = (_window_scores(codons, baseline.odds, baseline.window) >= baseline.threshold).astype(np.uint8)
    return found if strand == "+" else found[::-1]


def score(baseline: Baseline, bases: Mapping[str, Array], exons: Mapping[Key, Array]) -> Score:
    """Per base, over both strands of all sequences."""
    return total(
        base_score(mask(exons[name, strand], len(letters)), predict(baseline, letters, strand))
        for name, letters in bases.items()
        for strand in STRANDS
    )


def codon_indices(bases: Array) -> Array:
    """The codon that begins at each base, 0…63 in the order of ACGT, or 64; as many as there are bases."""
    digit = np.full(256, 4, np.uint8)
    for value, letters in enumerate(("Aa", "Cc", "Gg", "TtUu")):
        digit[[ord(letter) for letter in letters]] = value
    padded = np.full(len(bases) + 2, 4, np.uint8)
    padded[:-2] = digit[bases]
    first, second, third = padded[:-2], padded[1:-1], padded[2:]
    codons = first * np.uint8(16) + second * np.uint8(4) + third
    codons[(first == 4) | (second == 4) | (third == 4)] = UNKNOWN
    return codons


def _strands(bases: Mapping[str, Array], exons: Mapping[Key, Array]) -> Iterator[tuple[Array, Array]]:
    """Codons and exons of every strand, both in its own direction."""
    for name, letters in bases.items():
        yield codon_indices(letters), exons[name, "+"]
        yield codon_indices(opposite_bases(letters)), flipped(exons[name, "-"], len(letters))


def _learned_odds(strands: list[tuple[Array, Array]]) -> Array | None:
    odds = np.zeros(CODONS + 1)
    odds[codon_indices(np.frombuffer("".join(STOPS).encode(), np.uint8))[::3]] = STOP_PENALTY
    outside = np.zeros(CODONS)
    for codons, exons in strands:
        outside += np.bincount(codons[mask(exons, len(codons)) == 0], minlength=CODONS + 1)[:CODONS]
    for _ in range(ROUNDS):
        inside = np.zeros(CODONS)
        for codons, exons in strands:
            inside += _codons_in_frame(codons, exons, odds)
        if not inside.any() or not outside.any():
            return None
        # One more of each: a codon that was never seen is rare, not impossible.
        odds[:CODONS] = np.log((inside + 1) / (inside.sum() + CODONS)) - np.log(
            (outside + 1) / (outside.sum() + CODONS)
        )
    return odds


def _codons_in_frame(codons: Array, exons: Array, odds: Array) -> Array:
    """How often each codon occurs in the exons, each read in the frame that the odds favour."""
    sums = _strided_sums(odds[codons])
    starts = exons[:, :1] + np.arange(3)
    counts = np.maximum(exons[:, 1:] - starts, 0) // 3
    frames = np.argmax(sums[starts + 3 * counts] - sums[starts], axis=1)
    rows = np.arange(len(exons))
    firsts, lengths = starts[rows, frames], counts[rows, frames]
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = np.repeat(firsts, lengths) + 3 * (np.arange(lengths.sum()) - begins)
    return np.bincount(codons[at], minlength=CODONS + 1)[:CODONS]


def _strided_sums(values: Array) -> Array:
    """sums[i] = values[i − 3] + values[i − 6] + …: any stretch in any frame is then one difference. n + 5 of them."""
    rows = -(-len(values) // 3)
    padded = np.zeros((rows + 2, 3))
    padded[1:-1].ravel()[: len(values)] = values
    return np.cumsum(padded, axis=0).ravel()[: len(values) + 5]


def _window_scores(codons: Array, odds: Array, window: int) -> Array:
    """For each base the mean log-odds per codon in the window around it, cut off at the ends, in the best frame."""
    length = len(codons)
    sums = _strided_sums(odds[codons])
    left = np.maximum(np.arange(length) - window // 2, 0)
    right = np.minimum(np.arange(length) + window // 2, length)
    best = np.full(length, -np.inf)
    for frame in range(3):
        first = np.minimum(left + frame, right)
        count = (right - first) // 3
        np.maximum(best, (sums[first + 3 * count] - sums[first]) / np.maximum(count, 1), out=best)
    return best


def _best_threshold(strands: list[tuple[Array, Array]], odds: Array, window: int) -> tuple[float, int, float]:
    """The highest F1 that a threshold reaches with this window, the window, and the threshold."""
    edges = np.linspace(odds.min(), odds.max(), BINS + 1)
    everything = np.zeros(BINS)
    exonic = np.zeros(BINS)
    for codons, exons in strands:
        scores = _window_scores(codons, odds, window)
        everything += np.histogram(scores, edges)[0]
        exonic += np.histogram(scores[mask(exons, len(codons)) == 1], edges)[0]
    predicted = np.cumsum(everything[::-1])[::-1]
    right = np.cumsum(exonic[::-1])[::-1]
    f1 = 2 * right / np.maximum(predicted + exonic.sum(), 1)
    best = int(np.argmax(f1))
    return float(f1[best]), window, float(edges[best])
