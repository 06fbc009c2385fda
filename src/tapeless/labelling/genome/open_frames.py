"""The open-frame rule: a base is inside a feature where a reading of at least so many bases covers it, in any frame.

A reading is what `neighbourhood.Frames` tells: from the first start codon behind a stop through the next stop, or as
far as can be seen where it runs off the end. The least length is learned from annotated sequences: the highest F1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tapeless.labelling.genome.dna import STRANDS, StrandSignal
from tapeless.labelling.genome.gff import Key
from tapeless.labelling.genome.neighbourhood import READING, Frames, digits_around
from tapeless.labelling.genome.scores import Matched, strands_score
from tapeless.ops.contract import Array

SHORTEST = range(60, 1501, 30)  # least lengths tried
FOLLOWED = Frames(30_000)  # a longer reading is as good as this one
PIECE = 1 << 18  # bases looked at in one go


def fit(bases: Mapping[str, Array], labels: Mapping[Key, Array]) -> int:
    """The least length, from letters by sequence and, by sequence and strand, the label of each base: 1, 0, or −1 where
    it is not known. All in the + strand's coordinates."""
    edges = np.array([*SHORTEST, FOLLOWED.longest + 1])
    everything = np.zeros(len(SHORTEST))
    inside = np.zeros(len(SHORTEST))
    true = 0
    for name, letters in bases.items():
        for strand in STRANDS:
            known = labels[name, strand][:: 1 if strand == "+" else -1]
            true += int(np.count_nonzero(known == 1))
            first = 0
            for lengths in readings(letters, strand):
                here = known[first : first + len(lengths)]
                everything += np.histogram(lengths[here >= 0], edges)[0]
                inside += np.histogram(lengths[here == 1], edges)[0]
                first += len(lengths)
    predicted = np.cumsum(everything[::-1])[::-1]
    right = np.cumsum(inside[::-1])[::-1]
    return SHORTEST[int(np.argmax(right / np.maximum(predicted + true, 1)))]


def predict(shortest: int, bases: Array, strand: str) -> Array:
    """uint8, 1 where a base is predicted to be in a feature, in the + strand's coordinates; `bases` are the + strand's
    letters."""
    found = np.concatenate([lengths >= shortest for lengths in readings(bases, strand)]).astype(np.uint8)
    return found if strand == "+" else found[::-1]


def score(shortest: int, bases: Mapping[str, Array], labels: Mapping[Key, Array]) -> Matched:
    """Per base, over both strands of all sequences, where it is known what they are."""
    return strands_score(lambda letters, strand: predict(shortest, letters, strand), bases, labels)


def readings(bases: Array, strand: str, piece: int = PIECE) -> Iterator[Array]:
    """For each base of a strand, in its own direction, how long the longest reading is that covers it; piece by
    piece."""
    signal = StrandSignal(bases, strand)
    for start in range(0, len(bases), piece):
        stop = min(start + piece, len(bases))
        digits = digits_around(signal, start - FOLLOWED.reach, stop + FOLLOWED.reach)
        yield FOLLOWED.lengths(digits)[:, :, READING].max(axis=1)
