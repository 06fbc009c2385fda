"""What stands around each base of a strand, as numbers a model can read: letters, open frames, codon statistics.

Everything is read off the signal of `dna.py`, whose corners are the letters, so that a strand in its own direction is
all that is needed and the opposite strand is no special case. A sample that is no corner, an ambiguous letter or what
lies beyond the ends, has no letter: it is nobody's neighbour, it closes a reading frame, and its codons count nothing.

Position p is the first, second or third base of its codon; the frames 0, 1, 2 say which: the codon begins at p − frame.
Each family sees a bounded number of bases to each side (`reach`), so that a stretch with that much around it has the
numbers that the whole sequence would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from tapeless.genome.codons import FRAMES, closing_codons, codons_of, strided_sums
from tapeless.genome.dna import NO_LETTER
from tapeless.ops.contract import Array

LETTERS = 4


@dataclass(frozen=True)
class Bases:
    """Which of the four letters stands at each offset −side … side: ones and zeros."""

    side: int

    @property
    def reach(self) -> int:
        return self.side

    @property
    def width(self) -> int:
        return LETTERS * (2 * self.side + 1)

    def columns(self, digits: Array) -> Array:
        """Of all but the first and last `reach` of these bases."""
        count = len(digits) - 2 * self.reach
        one_hot = np.zeros((len(digits), NO_LETTER + 1), np.float32)
        one_hot[np.arange(len(digits)), digits] = 1
        known = one_hot[:, :LETTERS]
        return np.concatenate([known[offset : offset + count] for offset in range(2 * self.side + 1)], axis=1)


@dataclass(frozen=True)
class Frames:
    """For each frame how far back and how far ahead the nearest codon is that closes it, a stop or one not known.

    log(1 + bases) / log(1 + longest): 0 where the position's own codon closes, 1 where none does within `longest`.
    """

    longest: int

    @property
    def reach(self) -> int:
        return self.longest + FRAMES - 1

    @property
    def width(self) -> int:
        return 2 * FRAMES

    def columns(self, digits: Array) -> Array:
        """Of all but the first and last `reach` of these bases."""
        count = len(digits) - 2 * self.reach
        rows = -(-len(digits) // FRAMES)
        at = np.arange(rows * FRAMES).reshape(rows, FRAMES)
        # Codons that are cut short count as closing; they lie further than `longest` from all that is told.
        closes = np.ones((rows, FRAMES), bool)
        closes.ravel()[: len(digits)] = closing_codons(digits)
        far = len(digits) + self.longest
        before = np.maximum.accumulate(np.where(closes, at, -far), axis=0).ravel()
        behind = np.minimum.accumulate(np.where(closes, at, 2 * far)[::-1], axis=0)[::-1].ravel()
        found = np.empty((count, self.width), np.float32)
        for frame in range(FRAMES):
            codon = np.arange(self.reach - frame, self.reach - frame + count)
            found[:, 2 * frame] = np.minimum(codon - before[codon], self.longest)
            found[:, 2 * frame + 1] = np.minimum(behind[codon] - codon, self.longest)
        scaled: Array = np.log1p(found) / np.float32(np.log1p(self.longest))
        return scaled


@dataclass(frozen=True)
class Codons:
    """For each window and frame the log-odds of the codons around the position, summed, over √(their number).

    A window has as many codons to the left of the position's own as to the right, and is about as many bases long.
    """

    odds: tuple[float, ...]  # (65) by codon; the last is 0, of codons that are not known
    windows: tuple[int, ...]

    @property
    def reach(self) -> int:
        return FRAMES * self._sides(max(self.windows)) + FRAMES - 1

    @property
    def width(self) -> int:
        return FRAMES * len(self.windows)

    @staticmethod
    def _sides(window: int) -> int:
        return window // (2 * FRAMES)

    def columns(self, digits: Array) -> Array:
        """Of all but the first and last `reach` of these bases."""
        count = len(digits) - 2 * self.reach
        sums = strided_sums(np.asarray(self.odds)[codons_of(digits)])
        found = np.empty((count, self.width), np.float32)
        for number, window in enumerate(self.windows):
            sides = self._sides(window)
            for frame in range(FRAMES):
                first = np.arange(count) + self.reach - frame - FRAMES * sides
                total = sums[first + FRAMES * (2 * sides + 1)] - sums[first]
                found[:, FRAMES * number + frame] = total / sqrt(2 * sides + 1)
        return found


Family = Bases | Frames | Codons
