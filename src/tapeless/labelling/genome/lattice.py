"""Everything that genes on a sequence could be, as a lattice: exons, introns and what lies between, left to right.

A path through it is one annotation of the sequence. By construction a gene begins at a start codon, ends at a stop
codon, has none between, not across an intron either, has a length divisible by three, has introns from GT to AG, and
shares no place with another gene, on whichever strand. Only at the ends of the sequence may a gene be cut short.

Nodes are a place and a state: between genes, or at either end of an intron of one strand, with as much of a codon that
the intron splits as tells whether it would be a stop. A strand is looked at in its own direction and then turned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.labelling.genome.codons import FRAMES, UNKNOWN, codons_of, strided_sums
from tapeless.labelling.genome.dna import NO_LETTER
from tapeless.labelling.genome.evidence import GeneEvidence, Sites
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.ops.contract import Array

BETWEEN, EXON, INTRON = 0, 1, 2  # kinds of segments
SIGNAL, SPLICE, EDGE = 0, 1, 2  # how an exon begins and ends: start or stop codon, intron, end of the sequence
FEATURES = (
    "gene",
    "one exon, log length",
    "codons",
    "skipped starts, log bases",
    "skipped starts",
    "start context",
    "cut",
    "off the end",
    "network",
    "exon of several",
    "exon of several, log length",
    "intron",
    "splice sites",
    "intron length",
)
LONG, SHORT, SCORE = 300, 150, 30  # what lengths, and a network's summed log-odds, are told in
ENOUGH = 20  # summed log-odds of codons: far more of them say hardly more


@dataclass(frozen=True)
class Splitting:
    """States of an intron: how many bases of a codon come before it and, where they could begin a stop, which."""

    carried: Array  # bases by state
    by_letter: Array  # state by the letter before an intron that carries one
    by_pair: Array  # state by the two letters, 4·first + second, before one that carries two
    stops: Array  # (65,)
    openings: tuple[int, ...]  # letter, or pair, by state; −1 for any other

    @staticmethod
    def of(code: GeneticCode) -> Splitting:
        stops = np.flatnonzero(code.is_stop[:-1])
        letters, pairs = np.unique(stops // 16), np.unique(stops // 4)
        openings = (-1, -1, *letters.tolist(), -1, *pairs.tolist())
        carried = np.array([0] + [1] * (1 + len(letters)) + [2] * (1 + len(pairs)))
        by_letter, by_pair = np.full(NO_LETTER + 1, 1), np.full(25, 2 + len(letters))
        by_letter[letters] = 2 + np.arange(len(letters))
        by_pair[pairs] = 3 + len(letters) + np.arange(len(pairs))
        return Splitting(carried, by_letter, by_pair, code.is_stop, openings)

    def before(self, digits: Array, at: Array, carried: Array) -> Array:
        """The state of an intron that begins `at`."""
        last, pair = digits[at - 1], digits[np.maximum(at - 2, 0)]
        known = (last < NO_LETTER) & (pair < NO_LETTER)
        both = np.where(known, 4 * pair.astype(np.int64) + last, 24)
        return np.where(carried == 0, 0, np.where(carried == 1, self.by_letter[last], self.by_pair[both]))

    def joins(self, codons: Array, digits: Array, at: Array, state: int) -> Array:
        """Whether an exon that begins `at` may follow an intron of this state: the split codon is no stop."""
        opening = self.openings[state]
        if opening < 0:
            return np.ones(len(at), bool)
        if self.carried[state] == 1:
            second, third = digits[at], digits[np.minimum(at + 1, len(digits) - 1)]
            whole = np.where((second < NO_LETTER) & (third < NO_LETTER), 16 * opening + 4 * second + third, UNKNOWN)
        else:
            whole = np.where(digits[at] < NO_LETTER, 4 * opening + digits[at], UNKNOWN)
        return ~self.stops[whole]


@dataclass
class Segments:
    """Segments as columns, all of one length; `left` and `right` in the coordinates of the + strand."""

    kind: Array
    strand: Array  # 0 for +, 1 for −
    left: Array
    right: Array
    frame: Array  # of an exon: its bases before the first whole codon
    begins: Array  # of an exon: SIGNAL, SPLICE or EDGE
    ends: Array
    source: Array  # node at the left, by its key and in a Lattice by its number
    target: Array
    features: Array  # (segments, features)

    def __len__(self) -> int:
        return len(self.kind)

    def chosen(self, which: Array) -> Segments:
        return Segments(*(column[which] for column in vars(self).values()))


@dataclass(frozen=True)
class Lattice:
    """Segments in the order of their right ends, from node 0 to the last."""

    segments: Segments
    nodes: int
    length: int


def build(
    digits: tuple[Array, Array],
    evidence: tuple[GeneEvidence, GeneEvidence],
    code: GeneticCode,
    sites: Sites,
    cuts: tuple[bool, bool],
) -> Lattice:
    """Of a sequence, given as digits of both strands, each in its own direction, with what speaks for genes on it.

    `cuts`: whether the sequence goes on to the left of what is given here, and to the right.
    """
    length, splitting = len(digits[0]), Splitting.of(code)
    kinds = 1 + 4 * len(splitting.carried)
    found = []
    for strand in (0, 1):
        found += _strand(
            digits[strand], evidence[strand], code, sites, cuts[:: 1 - 2 * strand], splitting, strand, kinds
        )
    places = [np.array([0, length]) * kinds]
    places += [np.concatenate([each.source, each.target]) for each in found]
    keys = np.unique(np.concatenate(places))
    free = keys[keys % kinds == 0]
    found.append(_between(free, kinds))
    every = Segments(
        *(np.concatenate(columns) for columns in zip(*(vars(each).values() for each in found), strict=True))
    )
    every.source, every.target = np.searchsorted(keys, every.source), np.searchsorted(keys, every.target)
    return Lattice(every.chosen(np.argsort(every.target, kind="stable")), len(keys), length)


def _between(free: Array, kinds: int) -> Segments:
    none = np.zeros(len(free) - 1, np.int64)
    left, right = free[:-1] // kinds, free[1:] // kinds
    features = np.zeros((len(none), len(FEATURES)), np.float32)
    return Segments(none, none, left, right, none, none, none, free[:-1], free[1:], features)


def _strand(
    digits: Array,
    evidence: GeneEvidence,
    code: GeneticCode,
    sites: Sites,
    cuts: tuple[bool, ...],
    splitting: Splitting,
    strand: int,
    kinds: int,
) -> list[Segments]:
    """Exons and introns of one strand."""
    codons = codons_of(digits)
    closes = code.is_stop[codons] | (codons == UNKNOWN)
    closes[len(digits) - 2 :] = False  # cut short by the end: a gene may go on
    begins = _beginnings(codons, closes, digits, evidence, code, splitting)
    pairs = _exons(begins, closes, digits, evidence, splitting, sites)
    introns = _introns(digits, codons, evidence, splitting, sites, pairs, begins)
    return [
        _turned(each, len(digits), strand, kinds, len(splitting.carried))
        for each in (_described(begins, pairs, evidence, cuts), introns)
    ]


@dataclass
class _Beginnings:
    at: Array
    codon: Array  # the first whole codon
    how: Array
    state: Array  # of the intron before it, −1 without
    skipped: Array  # bases from the first start codon of its frame on


def _beginnings(
    codons: Array, closes: Array, digits: Array, evidence: GeneEvidence, code: GeneticCode, splitting: Splitting
) -> _Beginnings:
    starts = np.flatnonzero(code.is_start[codons])
    skipped = starts - _first_starts(starts, closes)
    edges = np.arange(min(FRAMES, len(digits)))
    at, codon, how, state, skips = [starts, 0 * edges], [starts, edges], [0 * starts, 0 * edges + EDGE], [], []
    state += [0 * starts - 1, 0 * edges - 1]
    skips += [skipped, 0 * edges]
    for number, carried in enumerate(splitting.carried.tolist()):
        here = evidence.acceptors[splitting.joins(codons, digits, evidence.acceptors, number)]
        at.append(here)
        codon.append(here + (FRAMES - carried) % FRAMES)
        how.append(0 * here + SPLICE)
        state.append(0 * here + number)
        skips.append(0 * here)
    found = _Beginnings(*map(np.concatenate, (at, codon, how, state, skips)))
    inside = found.codon <= len(digits) - FRAMES
    return _Beginnings(*(column[inside] for column in vars(found).values()))


def _first_starts(starts: Array, closes: Array) -> Array:
    """For each start codon the first one behind the same closing codon."""
    found = starts.copy()
    for frame in range(FRAMES):
        mine = np.flatnonzero(starts % FRAMES == frame)
        before = np.searchsorted(np.flatnonzero(closes[frame::FRAMES]), starts[mine] // FRAMES)
        opens = np.concatenate(([True], before[1:] != before[:-1]))[: len(mine)]
        found[mine] = starts[mine][np.maximum.accumulate(np.where(opens, np.arange(len(mine)), 0))]
    return found


def _next_closing(closes: Array, codon: Array) -> Array:
    """The codon that closes the frame of each codon, from it on; −1 where none does."""
    found = np.full(len(codon), -1)
    for frame in range(FRAMES):
        mine = np.flatnonzero(codon % FRAMES == frame)
        there = np.append(np.flatnonzero(closes[frame::FRAMES]) * FRAMES + frame, -1)
        found[mine] = there[np.searchsorted(there[:-1], codon[mine])]
    return found


@dataclass
class _Pairs:
    begin: Array  # by its number among the beginnings
    end: Array
    how: Array
    state: Array  # of the intron behind it, −1 without


def _exons(
    begins: _Beginnings, closes: Array, digits: Array, evidence: GeneEvidence, splitting: Splitting, sites: Sites
) -> _Pairs:
    closing = _next_closing(closes, begins.codon)
    codons = codons_of(digits)
    stopped = np.flatnonzero((closing >= 0) & splitting.stops[codons[closing]])
    open_ = np.flatnonzero((closing < 0) & (begins.how != EDGE))
    longest = np.where(closing < 0, len(digits), closing + FRAMES)  # a donor must come before
    low = np.searchsorted(evidence.donors, begins.codon + FRAMES)
    counts = np.maximum(np.searchsorted(evidence.donors, longest) - low, 0)
    spliced = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(spliced)) - np.repeat(np.cumsum(counts) - counts, counts)
    donors = evidence.donors[offsets + np.repeat(low, counts)]
    state = splitting.before(digits, donors, (donors - begins.codon[spliced]) % FRAMES)
    found = _Pairs(
        np.concatenate([stopped, open_, spliced]),
        np.concatenate([closing[stopped] + FRAMES, 0 * open_ + len(digits), donors]),
        np.concatenate([0 * stopped + SIGNAL, 0 * open_ + EDGE, 0 * spliced + SPLICE]),
        np.concatenate([0 * stopped - 1, 0 * open_ - 1, state]),
    )
    whole = (begins.how[found.begin] != SPLICE) & (found.how != SPLICE)
    kept = ~whole | (found.end - begins.at[found.begin] >= sites.shortest_gene)
    return _Pairs(*(column[kept] for column in vars(found).values()))


def _described(begins: _Beginnings, pairs: _Pairs, evidence: GeneEvidence, cuts: tuple[bool, ...]) -> Segments:
    at, codon, how = begins.at[pairs.begin], begins.codon[pairs.begin], begins.how[pairs.begin]
    length = pairs.end - at
    codons = np.maximum(pairs.end - codon, 0) // FRAMES - (pairs.how == SIGNAL)  # all but the stop
    sums = strided_sums(evidence.codons)
    first = how == SIGNAL
    whole = (how != SPLICE) & (pairs.how != SPLICE)
    told = sums[codon + FRAMES * codons] - sums[codon]
    skipped = begins.skipped[pairs.begin]
    features = np.zeros((len(at), len(FEATURES)), np.float32)
    columns = [
        how != SPLICE,
        np.where(whole, np.log(length / LONG), 0),
        3 * told / np.hypot(told, ENOUGH),
        np.log1p(skipped / 30),
        skipped > 0,
        np.where(first, evidence.starts[at], 0) / 3,
        *((how == EDGE) * (cuts[0] == cut) + (pairs.how == EDGE) * (cuts[1] == cut) for cut in (True, False)),
        (evidence.network[pairs.end] - evidence.network[at]) / SCORE,
        ~whole,
        np.where(whole, 0, np.log(length / SHORT)),
    ]
    for number, column in enumerate(columns):
        features[:, number] = column
    return Segments(
        np.full(len(at), EXON),
        np.zeros(len(at), np.int64),
        at,
        pairs.end,
        codon - at,
        how,
        pairs.how,
        begins.state[pairs.begin],
        pairs.state,
        features,
    )


def _introns(
    digits: Array,
    codons: Array,
    evidence: GeneEvidence,
    splitting: Splitting,
    sites: Sites,
    pairs: _Pairs,
    begins: _Beginnings,
) -> Segments:
    left, right, states = [], [], []
    for state in range(len(splitting.carried)):
        donors = np.unique(pairs.end[(pairs.how == SPLICE) & (pairs.state == state)])
        acceptors = np.unique(begins.at[begins.state == state])
        low = np.searchsorted(acceptors, donors + sites.shortest_intron)
        counts = np.maximum(np.searchsorted(acceptors, donors + sites.longest_intron, side="right") - low, 0)
        left.append(np.repeat(donors, counts))
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        right.append(acceptors[offsets + np.repeat(low, counts)])
        states.append(np.full(len(right[-1]), state))
    begin, end, split = np.concatenate(left), np.concatenate(right), np.concatenate(states)
    features = np.zeros((len(begin), len(FEATURES)), np.float32)
    features[:, FEATURES.index("intron")] = 1
    features[:, FEATURES.index("splice sites")] = (evidence.donor_scores[begin] + evidence.acceptor_scores[end]) / 3
    features[:, FEATURES.index("intron length")] = np.log((end - begin) / sites.usual_intron) ** 2
    none = np.zeros(len(begin), np.int64)
    return Segments(none + INTRON, none, begin, end, none, none, none, split, split, features)


def _turned(own: Segments, length: int, strand: int, kinds: int, states: int) -> Segments:
    """In the coordinates of the + strand, with keys of nodes: an exon's ends at introns, or an intron's at exons."""
    donor, acceptor = (1 + (2 * strand + side) * states for side in (0, 1))
    exon = own.kind == EXON
    begin = np.where(exon, np.where(own.source < 0, 0, acceptor + own.source), donor + own.source)
    end = np.where(exon, np.where(own.target < 0, 0, donor + own.target), acceptor + own.target)
    own.strand = np.full(len(own), strand)
    if strand:
        own.left, own.right, begin, end = length - own.right, length - own.left, end, begin
    own.source, own.target = own.left * kinds + begin, own.right * kinds + end
    return own
