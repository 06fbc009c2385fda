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
from typing import Any

import numpy as np

from tapeless.labelling.genome.codons import FRAMES, closing_codons, starting_codons
from tapeless.labelling.genome.dna import BEYOND, digits_of_signal, opposite_digits
from tapeless.ops.contract import Array

LETTERS = 4
READING, TOLD = 2, 3  # of each frame: back, ahead and reading


def digits_around(signal: Any, first: int, last: int) -> Array:
    """The letters of a strand from `first` up to `last`, also where these lie beyond its ends."""
    found = np.full(last - first, BEYOND, np.uint8)
    begin, end = max(0, first), min(last, len(signal))
    found[begin - first : end - first] = digits_of_signal(signal[begin:end])
    return found


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
    not known, and how long the reading is that covers the position, from its start codon through what closes it.

    Told is ½ log(1 + bases): a distance is 0 where the position's own codon closes, a length where no reading covers
    it. A reading begins at the first start codon behind the last closing one, but not more than `longest` bases before
    it closes; where it does not close within `longest`, it is as long as that.
    """

    longest: int

    @property
    def reach(self) -> int:
        return self.longest + FRAMES - 1

    @property
    def width(self) -> int:
        return FRAMES * TOLD

    def columns(self, digits: Array) -> Array:
        """Of all but the first and last `reach` of these bases."""
        lengths = self.lengths(digits)
        scaled: Array = np.log1p(lengths.reshape(len(lengths), self.width), dtype=np.float32) / 2
        return scaled

    def lengths(self, digits: Array) -> Array:
        """(bases, frame, 3) back, ahead and reading, in bases; of all but the first and last `reach` of these bases."""
        # One row a codon of each frame, and one more that closes all: it lies further than `longest` from all that is
        # told, so that it stands for whatever comes later.
        rows = -(-len(digits) // FRAMES) + 1
        closes, starts = np.zeros((2, rows, FRAMES), bool)
        closes.ravel()[: len(digits)] = closing_codons(digits)
        closes[-1] = True
        starts.ravel()[: len(digits)] = starting_codons(digits)
        found = np.empty((rows, FRAMES, TOLD), np.int32)
        for frame in range(FRAMES):
            found[:, frame] = self._lengths(np.flatnonzero(closes[:, frame]), np.flatnonzero(starts[:, frame]), rows)
        by_base = found.reshape(-1, TOLD)
        told = np.arange(self.reach, len(digits) - self.reach)
        return np.stack([by_base[told - frame] for frame in range(FRAMES)], axis=1)

    def _lengths(self, closes: Array, starts: Array, rows: int) -> Array:
        """Of the codons 0 … rows − 1 of one frame, of which the last closes."""
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
        bounded: Array = np.minimum(bases, self.longest)
        return bounded


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
