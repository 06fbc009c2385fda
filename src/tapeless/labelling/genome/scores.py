"""How well predicted genes and stretches agree with the true ones, and what simple rules reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.labelling.genome.dna import STRANDS
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.lattice import EXON, FEATURES, SPLICE, Lattice
from tapeless.ops.contract import Array

Stretch = tuple[int, int]
RULES = {"longest open frames": None, "codon statistics": "codons", "network's scores": "network"}


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
        both = self.predicted + self.true
        return 2 * self.right / both if both else 0.0

    def __add__(self, other: Matched) -> Matched:
        return Matched(self.right + other.right, self.predicted + other.predicted, self.true + other.true)

    def document(self) -> dict[str, Any]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}


NOTHING = Matched(0, 0, 0)


@dataclass(frozen=True)
class Truth:
    """What is known of a stretch of a sequence: of both strands the label of each base, 1, 0, or −1 where it is not
    known, and the stretches and genes; in the coordinates of the + strand."""

    labels: tuple[Array, Array]
    stretches: tuple[frozenset[Stretch], frozenset[Stretch]]
    genes: frozenset[tuple[str, tuple[Stretch, ...]]]


@dataclass(frozen=True)
class Agreement:
    """Of bases, of stretches with both ends right, and of genes with all their stretches right."""

    bases: Matched = NOTHING
    exact: Matched = NOTHING
    genes: Matched = NOTHING

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.bases + other.bases, self.exact + other.exact, self.genes + other.genes)

    def document(self) -> dict[str, Any]:
        return {name: each.document() for name, each in vars(self).items()}


def agreement(
    truth: Truth, found: tuple[Iterable[Stretch], Iterable[Stretch]], genes: Iterable[Gene] = ()
) -> Agreement:
    """A stretch that is unknown for the greater part counts for nothing, and neither does a gene with one."""
    bases, exact = NOTHING, NOTHING
    for labels, true, stretches in zip(truth.labels, truth.stretches, found, strict=True):
        said = np.zeros(len(labels), bool)
        kept = {each for each in stretches if _is_known(labels, each)}
        for start, end in kept:
            said[start:end] = True
        said &= labels >= 0
        inside = labels == 1
        bases += Matched(int((said & inside).sum()), int(said.sum()), int(inside.sum()))
        exact += Matched(len(kept & true), len(kept), len(true))
    told = {
        gene.ends for gene in genes if all(_is_known(truth.labels[gene.strand == "-"], each) for each in gene.exons)
    }
    return Agreement(bases, exact, Matched(len(told & truth.genes), len(told), len(truth.genes)))


def _is_known(labels: Array, stretch: Stretch) -> bool:
    here = labels[slice(*stretch)]
    return 2 * int(np.count_nonzero(here < 0)) <= len(here)


def of_genes(truth: Truth, genes: Sequence[Gene]) -> Agreement:
    plus, minus = ([exon for gene in genes if gene.strand == strand for exon in gene.exons] for strand in STRANDS)
    return agreement(truth, (plus, minus), genes)


def greedy(lattice: Lattice, feature: str | None) -> list[tuple[float, Gene]]:
    """The simple rule: of all open frames the one with the most first, then the next that shares no place with it …

    The most bases; or the most of a feature. An open frame reaches from the first start codon behind a stop codon, or
    from the end of the sequence, to the next stop codon.
    """
    segments = lattice.segments
    first = segments.features[:, FEATURES.index("skipped starts")] == 0
    frames = segments.chosen((segments.kind == EXON) & (segments.begins != SPLICE) & (segments.ends != SPLICE) & first)
    values = frames.right - frames.left if feature is None else frames.features[:, FEATURES.index(feature)]
    taken = np.zeros(lattice.length, bool)
    found = []
    for number in np.argsort(-values, kind="stable").tolist():
        here = slice(int(frames.left[number]), int(frames.right[number]))
        if not taken[here].any():
            taken[here] = True
            found.append((float(values[number]), Gene(STRANDS[frames.strand[number]], ((here.start, here.stop),))))
    return found


def least_value(ranked: Sequence[tuple[Truth, list[tuple[float, Gene]]]], tried: int = 60) -> float:
    """The least value of a rule that does best where its genes are known: F1 of bases and of exact stretches, added."""
    values = np.unique([value for _, found in ranked for value, _ in found])
    if not len(values):
        return np.inf
    best = (-1.0, np.inf)
    for least in np.unique(np.quantile(values, np.linspace(0, 1, tried), method="nearest")).tolist():
        total = ruled(ranked, least)
        best = max(best, (total.bases.f1 + total.exact.f1, least))
    return float(best[1])


def ruled(ranked: Sequence[tuple[Truth, list[tuple[float, Gene]]]], least: float) -> Agreement:
    """What a rule reaches that takes everything from `least` on."""
    every = (of_genes(truth, [gene for value, gene in found if value >= least]) for truth, found in ranked)
    return sum(every, Agreement())
