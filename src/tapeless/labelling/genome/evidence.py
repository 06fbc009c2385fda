"""What letters say about genes: codons, the surroundings of start codons, splice sites and lengths of introns.

All are log-odds of counts in annotated genes against the background. Counts add up, so what was learned from a part of
a genome can be taken away again: a part is never judged by what was counted in itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from tapeless.labelling.genome.codons import CODONS, FRAMES, codons_of
from tapeless.labelling.genome.dna import NO_LETTER, opposite_digits
from tapeless.labelling.genome.genes import Gene
from tapeless.ops.contract import Array

# Letters looked at around the first base of a start codon, of an intron and of an exon behind one. Those that are
# always the same say nothing.
START, DONOR, ACCEPTOR = (-9, 6), (-3, 6), (-15, 3)
PRIOR = 2.0  # letters that are counted beforehand, as the background has them
DENSEST, SPARSEST = 40, 150  # at most one splice site in so many bases; as many as that in any case
LEAST_INTRON, MOST_INTRON = 20, 20_000
LEAST_GENE = 60
FEWEST_INTRONS = 20  # of fewer nobody learns what a splice site looks like: genes are then taken to have one exon


@dataclass(frozen=True)
class Counts:
    """Additive; of one part of the training data."""

    inside: Array  # (64,) codons of genes, in frame, without the last one
    outside: Array  # (64,) codons at any base outside
    letters: Array  # (4,)
    start: Array  # (places, 5)
    donor: Array
    acceptor: Array
    introns: tuple[int, ...] = ()  # their lengths

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Counts)))


def count(digits: Array, genes: Sequence[Gene], labels: tuple[Array, Array], first: int, last: int) -> Counts:
    """Of the genes that begin at `first` or behind, and before `last`, and the background between the two.

    `labels` of both strands, 1 in a gene and 0 outside, in the coordinates of the + strand as all else.
    """
    inside, outside = np.zeros(CODONS), np.zeros(CODONS)
    windows = {each: np.zeros((each[1] - each[0], NO_LETTER + 1)) for each in (START, DONOR, ACCEPTOR)}
    introns: list[int] = []
    strands = (digits, opposite_digits(digits))
    for own, known in zip(strands, (labels[0], labels[1][::-1]), strict=True):
        here = slice(first, last) if own is digits else slice(len(digits) - last, len(digits) - first)
        codons = codons_of(own)[here][known[here] == 0]
        outside += np.bincount(codons, minlength=CODONS + 1)[:CODONS]
    for gene in genes:
        if not first <= gene.left < last:
            continue
        own = strands[gene.strand == "-"]
        exons = gene.ordered()
        if gene.strand == "-":
            exons = tuple((len(digits) - end, len(digits) - start) for start, end in exons)
        spliced = np.concatenate([own[start:end] for start, end in exons])[gene.frame :]
        codons = codons_of(spliced)[: max(0, len(spliced) - FRAMES) : FRAMES]
        inside += np.bincount(codons, minlength=CODONS + 1)[:CODONS]
        if gene.has_start:
            _see(windows[START], own, exons[0][0] + START[0])
        for (_, left), (right, _) in pairwise(exons):
            if own[left : left + 2].tolist() == [2, 3] and own[right - 2 : right].tolist() == [0, 2]:
                _see(windows[DONOR], own, left + DONOR[0])
                _see(windows[ACCEPTOR], own, right + ACCEPTOR[0])
                introns.append(right - left)
    letters = np.bincount(digits[first:last], minlength=NO_LETTER)[:NO_LETTER].astype(float)
    return Counts(inside, outside, letters, windows[START], windows[DONOR], windows[ACCEPTOR], tuple(introns))


def _see(window: Array, digits: Array, first: int) -> None:
    if 0 <= first <= len(digits) - len(window):
        window[np.arange(len(window)), np.minimum(digits[first : first + len(window)], NO_LETTER)] += 1


@dataclass(frozen=True)
class Sites:
    """Which splice sites are looked at, and lengths."""

    donor: float = np.inf  # least scores
    acceptor: float = np.inf
    shortest_intron: int = LEAST_INTRON
    longest_intron: int = LEAST_INTRON
    usual_intron: float = 100.0
    shortest_gene: int = LEAST_GENE


@dataclass(frozen=True)
class Statistics:
    """Log-odds: of codons (65,), 0 where not known, and of letters (places, 5) around sites."""

    codons: Array
    start: Array
    donor: Array
    acceptor: Array

    def document(self) -> dict[str, Any]:
        return {name: value.tolist() for name, value in asdict(self).items()}


def learned(counts: Counts) -> Statistics:
    letters = counts.letters + counts.letters[::-1] + 1  # of both strands
    background = letters / letters.sum()
    # One more of each codon: one that was never seen is rare, not impossible.
    inside, outside = counts.inside + 1, counts.outside + 1
    odds = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
    windows = []
    for window, fixed in ((counts.start, (9, 12)), (counts.donor, (3, 5)), (counts.acceptor, (13, 15))):
        seen = window[:, :NO_LETTER] + PRIOR * background
        scores = np.log(seen / seen.sum(axis=1, keepdims=True)) - np.log(background)
        scores[slice(*fixed)] = 0
        windows.append(np.append(scores, np.zeros((len(scores), 1)), axis=1))
    return Statistics(np.append(odds, 0.0), *windows)


@dataclass
class GeneEvidence:
    """Of one strand in its own direction, by base; `network` is summed up to each base, and has one more."""

    codons: Array
    starts: Array
    donors: Array  # places of introns' first bases
    donor_scores: Array  # by base
    acceptors: Array  # places of exons' first bases behind an intron
    acceptor_scores: Array
    network: Array


def evidence(digits: Array, statistics: Statistics, network: Array | None = None) -> GeneEvidence:
    """All of it, but for which splice sites are looked at. `network`: log-odds of each base, by a model."""
    summed = np.zeros(len(digits) + 1) if network is None else np.append(0.0, np.cumsum(network, dtype=np.float64))
    none = np.zeros(0, np.int64)
    return GeneEvidence(
        statistics.codons[codons_of(digits)],
        _scores(digits, statistics.start, START[0]),
        none,
        _scores(digits, statistics.donor, DONOR[0]),
        none,
        _scores(digits, statistics.acceptor, ACCEPTOR[0]),
        summed,
    )


def _scores(digits: Array, window: Array, first: int) -> Array:
    """For each base, and the end, the sum over the letters around it; beyond the ends there are none."""
    beyond = len(window)
    padded = np.full(len(digits) + 2 * beyond + 1, NO_LETTER, np.uint8)
    padded[beyond : beyond + len(digits)] = np.minimum(digits, NO_LETTER)
    found = np.zeros(len(digits) + 1)
    for place, scores in enumerate(window):
        begin = beyond + first + place
        found += scores[padded[begin : begin + len(found)]]
    return found


def splice_sites(digits: Array, found: GeneEvidence, sites: Sites) -> None:
    """Note those that are looked at: GT and AG with enough around them."""
    donor = np.flatnonzero((digits[:-1] == 2) & (digits[1:] == 3))
    acceptor = np.flatnonzero((digits[:-1] == 0) & (digits[1:] == 2)) + 2
    found.donors = donor[found.donor_scores[donor] >= sites.donor]
    found.acceptors = acceptor[found.acceptor_scores[acceptor] >= sites.acceptor]
    found.acceptors = found.acceptors[found.acceptors < len(digits)]


def chosen_sites(
    strands: Sequence[tuple[Array, GeneEvidence]], true: tuple[Sequence[float], Sequence[float]], introns: Sequence[int]
) -> Sites:
    """As good as the true ones, but not more than one in DENSEST bases; none where there are few introns."""
    if len(introns) < FEWEST_INTRONS:
        return Sites()
    bases = sum(len(digits) for digits, _ in strands)
    least = []
    for which, seen in enumerate(true):
        every = [_site_scores(digits, each, which) for digits, each in strands]
        scores = np.sort(np.concatenate(every))[::-1]
        few, many = (scores[min(len(scores) - 1, bases // each)] for each in (SPARSEST, DENSEST))
        least.append(float(np.clip(min(seen, default=few), many, few)))
    shortest, longest = max(LEAST_INTRON, round(0.7 * min(introns))), min(MOST_INTRON, round(1.5 * max(introns)))
    return Sites(least[0], least[1], shortest, max(longest, shortest + 1), float(np.median(introns)))


def _site_scores(digits: Array, found: GeneEvidence, which: int) -> Array:
    pair = ((2, 3), (0, 2))[which]
    at = np.flatnonzero((digits[:-1] == pair[0]) & (digits[1:] == pair[1]))
    scores: Array = found.donor_scores[at] if which == 0 else found.acceptor_scores[at + 2]
    return scores


def strands_of(digits: Array) -> tuple[Array, Array]:
    """Each in its own direction."""
    return digits, opposite_digits(digits)
