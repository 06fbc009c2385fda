"""Codons: which one begins at each base, how often each is inside features and outside, and the frame they are read in.

The table of log-odds is learned from annotated stretches whose frame is not told, so it is estimated: a stop codon is
rare in the right one, and from the table that this gives, better frames and with them a better table are found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tapeless.labelling.genome.dna import BEYOND, NO_LETTER, digits_of
from tapeless.labelling.genome.intervals import runs
from tapeless.ops.contract import Array

FRAMES = 3
CODONS = 64
UNKNOWN = CODONS  # a codon with an ambiguous letter, or one that is cut short
START = "ATG"
STOPS = ("TAA", "TAG", "TGA")
STOP_PENALTY = -5.0
ROUNDS = 4  # the frames of synthetic and real exons settle within three


def codons_of(digits: Array) -> Array:
    """The codon that begins at each base, 0…63 in the order of ACGT, or 64; as many as there are bases."""
    padded = np.full(len(digits) + 2, NO_LETTER, np.uint8)
    padded[:-2] = digits
    first, second, third = padded[:-2], padded[1:-1], padded[2:]
    codons = first * np.uint8(16) + second * np.uint8(4) + third
    codons[(first >= NO_LETTER) | (second >= NO_LETTER) | (third >= NO_LETTER)] = UNKNOWN
    return codons


def codon_indices(bases: Array) -> Array:
    """The same from letters in ASCII."""
    return codons_of(digits_of(bases))


def closing_codons(digits: Array) -> Array:
    """Where a reading frame ends: at a stop codon, and at one that is not known; not at the end of the sequence, behind
    which it may go on."""
    closes: Array = _CLOSES[codons_of(digits)]
    beyond = np.flatnonzero(digits == BEYOND)
    for before in range(FRAMES):
        closes[beyond[beyond >= before] - before] = False
    return closes


def starting_codons(digits: Array) -> Array:
    starts: Array = codons_of(digits) == _START
    return starts


def stop_odds() -> Array:
    """What is known before anything was learned: that a stop codon is rare in the right frame."""
    return np.where(_IS_STOP, STOP_PENALTY, 0.0)


_IS_STOP = np.zeros(CODONS + 1, bool)
_IS_STOP[codon_indices(np.frombuffer("".join(STOPS).encode(), np.uint8))[::FRAMES]] = True
_START = codon_indices(np.frombuffer(START.encode(), np.uint8))[0]
_CLOSES = _IS_STOP | (np.arange(CODONS + 1) == UNKNOWN)


def learned_odds(strands: Sequence[tuple[Array, Array]]) -> Array | None:
    """(65,) log-odds by codon, 0 for those not known, from the codons and labels (1, 0, −1) of strands in their own
    direction. None where there are no codons inside, or none outside."""
    odds = stop_odds()
    outside = np.zeros(CODONS)
    stretches = [runs(labels == 1) for _, labels in strands]
    for codons, labels in strands:
        outside += np.bincount(codons[labels == 0], minlength=CODONS + 1)[:CODONS]
    for _ in range(ROUNDS):
        inside = np.zeros(CODONS)
        for (codons, _), spans in zip(strands, stretches, strict=True):
            inside += codons_in_frame(codons, spans, odds)
        if not inside.any() or not outside.any():
            return None
        # One more of each: a codon that was never seen is rare, not impossible.
        odds[:CODONS] = np.log((inside + 1) / (inside.sum() + CODONS)) - np.log(
            (outside + 1) / (outside.sum() + CODONS)
        )
    return odds


def codons_in_frame(codons: Array, stretches: Array, odds: Array) -> Array:
    """How often each codon occurs in the stretches, each read in the frame that the odds favour."""
    frames = best_frames(codons, stretches, odds)
    firsts = stretches[:, 0] + frames
    lengths = np.maximum(stretches[:, 1] - firsts, 0) // FRAMES
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = np.repeat(firsts, lengths) + FRAMES * (np.arange(lengths.sum()) - begins)
    return np.bincount(codons[at], minlength=CODONS + 1)[:CODONS]


def best_frames(codons: Array, stretches: Array, odds: Array) -> Array:
    """For each stretch how many of its bases, 0, 1 or 2, come before the first codon of the likeliest frame.

    In GFF3 that is the phase.
    """
    sums = strided_sums(odds[codons])
    starts = stretches[:, :1] + np.arange(FRAMES)
    counts = np.maximum(stretches[:, 1:] - starts, 0) // FRAMES
    frames: Array = np.argmax(sums[starts + FRAMES * counts] - sums[starts], axis=1)
    return frames


def phase(bases: Array, odds: Array | None = None) -> int:
    """Of one stretch, given as letters in its strand's own direction. Where no odds were learned, stop codons tell.

    A stop weighs at least its penalty here: learned odds have seen the one that ends every gene.
    """
    weighed = stop_odds() if odds is None else np.where(_IS_STOP, np.minimum(odds, STOP_PENALTY), odds)
    return int(best_frames(codon_indices(bases), np.array([[0, len(bases)]]), weighed)[0])


def strided_sums(values: Array) -> Array:
    """sums[i] = values[i − 3] + values[i − 6] + …: any stretch in any frame is then one difference. n + 5 of them."""
    rows = -(-len(values) // FRAMES)
    padded = np.zeros((rows + 2, FRAMES))
    padded[1:-1].ravel()[: len(values)] = values
    return np.cumsum(padded, axis=0).ravel()[: len(values) + 5]
