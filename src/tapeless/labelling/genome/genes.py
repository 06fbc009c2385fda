"""A gene: its coding exons on one strand, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.labelling.genome.codons import FRAMES, UNKNOWN, codon_indices
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.ops.contract import Array


@dataclass(frozen=True)
class Gene:
    """Coding exons in the + strand's coordinates, 0-based and half-open, from left to right, the stop codon included.

    `frame`: the bases before the first whole codon, in the gene's own direction; 0 where it has its start codon.
    """

    strand: str
    exons: tuple[tuple[int, int], ...]
    frame: int = 0
    has_start: bool = True
    has_stop: bool = True
    probability: float = 1.0

    @property
    def left(self) -> int:
        return self.exons[0][0]

    @property
    def right(self) -> int:
        return self.exons[-1][1]

    @property
    def ends(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """What makes it this gene and no other."""
        return self.strand, self.exons

    @property
    def length(self) -> int:
        return sum(end - start for start, end in self.exons)

    def ordered(self) -> tuple[tuple[int, int], ...]:
        """Its exons in its own direction."""
        return self.exons if self.strand == "+" else self.exons[::-1]

    def phases(self) -> list[int]:
        """Of each exon in the gene's own direction the bases before its first whole codon: the phase of GFF3."""
        found, before = [], -self.frame
        for start, end in self.ordered():
            found.append(-before % FRAMES)
            before += end - start
        return found

    def coding(self, letters: Array) -> Array:
        """Its letters in its own direction, from the first whole codon on; `letters` are the + strand's."""
        spliced = np.concatenate([letters[start:end] for start, end in self.exons])
        return (spliced if self.strand == "+" else opposite_bases(spliced))[self.frame :]

    def ended(self, letters: Array, code: GeneticCode) -> Gene:
        """As its letters have it: cut short where it reaches an end of the sequence without its codon."""
        coding = self.coding(letters)
        codons = codon_indices(coding)[: max(1, len(coding) - 2) : FRAMES] if len(coding) else [UNKNOWN]
        left, right = self.left == 0, self.right == len(letters)
        before, behind = (left, right) if self.strand == "+" else (right, left)
        start = self.frame == 0 and bool(code.is_start[codons[0]])
        stop = len(coding) % FRAMES == 0 and bool(code.is_stop[codons[-1]])
        return self._with(self.exons, self.frame, start or not before, stop or not behind)

    def moved(self, by: int) -> Gene:
        """So many bases further right."""
        return self._with(tuple((start + by, end + by) for start, end in self.exons), self.frame, True, True)

    def clipped(self, first: int, last: int) -> Gene | None:
        """What lies between two places, counted from the first; None where nothing does."""
        exons = tuple((max(a, first) - first, min(b, last) - first) for a, b in self.exons if a < last and b > first)
        if not exons:
            return None
        left = sum(max(0, min(b, first) - a) for a, b in self.exons)
        right = sum(max(0, b - max(a, last)) for a, b in self.exons)
        lost, after = (left, right) if self.strand == "+" else (right, left)
        return self._with(exons, (self.frame - lost) % FRAMES if lost else self.frame, not lost, not after)

    def _with(self, exons: tuple[tuple[int, int], ...], frame: int, start: bool, stop: bool) -> Gene:
        return Gene(self.strand, exons, frame, self.has_start and start, self.has_stop and stop, self.probability)
