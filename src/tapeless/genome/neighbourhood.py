"""What stands around each base of a strand, as numbers a model can read: letters and open frames.

Everything is read off the signal of `dna.py`, whose corners are the letters, so that a strand in its own direction is
all that is needed and the opposite strand is no special case. A sample that is no corner, an ambiguous letter, has no
letter: it is nobody's neighbour, and it closes a reading frame. What lies beyond the ends is nobody's neighbour either,
but closes nothing: a gene may go on there.

Position p is the first, second or third base of its codon; the frames 0, 1, 2 say which: the codon begins at p − frame.
Each family sees a bounded number of bases to each side (`reach`), so that a stretch with that much around it has the
numbers that the whole sequence would give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.genome.codons import FRAMES, closing_codons, starting_codons
from tapeless.genome.dna import BEYOND, opposite_digits
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
        one_hot = np.zeros((len(digits), BEYOND + 1), np.float32)
        one_hot[np.arange(len(digits)), digits] = 1
        known = one_hot[:, :LETTERS]
        return np.concatenate([known[offset : offset + count] for offset in range(2 * self.side + 1)], axis=1)


@dataclass(frozen=True)
class Frames:
    """For each frame three lengths: how far back and how far ahead the nearest codon is that closes it, a stop or one
    not known, and how long the reading is that covers the position, from its start codon up to what closes it.

    Told is ½ log(1 + bases): 0 where the position's own codon closes, or no reading covers it. A reading begins at the
    first start codon behind the last closing one, but not more than `longest` bases before it closes; where it does not
    close within `longest`, it is as long as that.
    """

    longest: int

    @property
    def reach(self) -> int:
        return self.longest + FRAMES - 1

    @property
    def width(self) -> int:
        return FRAMES * FRAMES

    def columns(self, digits: Array) -> Array:
        """Of all but the first and last `reach` of these bases."""
        count = len(digits) - 2 * self.reach
        # One row a codon of each frame. Codons that are cut short count as closing; they lie further than `longest`
        # from all that is told.
        rows = len(digits) // FRAMES + 1
        closes, starts = np.ones((2, rows, FRAMES), bool)
        closes.ravel()[: len(digits)] = closing_codons(digits)
        starts.ravel()[: len(digits)] = starting_codons(digits)
        lengths = np.empty((rows, FRAMES, FRAMES), np.float32)
        for frame in range(FRAMES):
            lengths[:, frame] = self._lengths(np.flatnonzero(closes[:, frame]), np.flatnonzero(starts[:, frame]), rows)
        flat = lengths.reshape(-1, FRAMES)
        first = np.arange(self.reach, self.reach + count)
        found = np.concatenate([flat[first - frame] for frame in range(FRAMES)], axis=1)
        scaled: Array = np.log1p(found) / 2
        return scaled

    def _lengths(self, closes: Array, starts: Array, rows: int) -> Array:
        """Back, ahead and reading, in bases, of the codons 0 … rows − 1 of one frame; the last one closes."""
        most = self.longest // FRAMES
        codon = np.arange(rows)
        nearest = np.searchsorted(closes, codon)  # the first that closes, from each codon on
        behind = closes[nearest]
        closed = np.concatenate([[-rows - most], closes])  # one more in front, so that each has one before it
        before = np.where(behind == codon, codon, closed[nearest])
        # Where each reading that closes begins: `rows` where it has no start codon.
        starts = np.concatenate([starts, [rows]])
        begins = starts[np.searchsorted(starts, np.maximum(closed[:-1] + 1, closes - most))][nearest]
        latest = starts[np.searchsorted(starts[:-1], codon, side="right") - 1]
        near = behind - codon <= most
        running = (latest <= codon) & (latest > before) & (codon - latest <= most)
        reading = np.where(near, np.where(begins <= codon, behind - begins + 1, 0), np.where(running, most, 0))
        bases = FRAMES * np.stack([codon - before, behind - codon, reading], axis=1)
        return np.minimum(bases, self.longest)


@dataclass(frozen=True)
class Opposite:
    """The frames of the opposite strand at the same base: two genes rarely lie on both."""

    longest: int

    @property
    def reach(self) -> int:
        return Frames(self.longest).reach

    @property
    def width(self) -> int:
        return Frames(self.longest).width

    def columns(self, digits: Array) -> Array:
        return Frames(self.longest).columns(opposite_digits(digits))[::-1]


Family = Bases | Frames | Opposite
