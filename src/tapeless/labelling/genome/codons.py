"""Codons: which one begins at each base, and where one closes a reading frame in the standard code."""

from __future__ import annotations

import numpy as np

from tapeless.labelling.genome.dna import BEYOND, NO_LETTER, digits_of
from tapeless.ops.contract import Array

FRAMES = 3
CODONS = 64
UNKNOWN = CODONS  # a codon with an ambiguous letter, or one that is cut short
START = "ATG"
STOPS = ("TAA", "TAG", "TGA")


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


_IS_STOP = np.zeros(CODONS + 1, bool)
_IS_STOP[codon_indices(np.frombuffer("".join(STOPS).encode(), np.uint8))[::FRAMES]] = True
_START = codon_indices(np.frombuffer(START.encode(), np.uint8))[0]
_CLOSES = _IS_STOP | (np.arange(CODONS + 1) == UNKNOWN)


def strided_sums(values: Array) -> Array:
    """sums[i] = values[i − 3] + values[i − 6] + …: any stretch in any frame is then one difference. n + 5 of them."""
    rows = -(-len(values) // FRAMES)
    padded = np.zeros((rows + 2, FRAMES))
    padded[1:-1].ravel()[: len(values)] = values
    return np.cumsum(padded, axis=0).ravel()[: len(values) + 5]
