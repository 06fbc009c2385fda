"""The decoder: a semi-Markov conditional random field that finds whole genes in letters and a network's scores.

A segment's score is a weighted sum of its features (`lattice.FEATURES`). The weights are those of the highest
likelihood of the annotated genes, with a Gaussian prior; the likelihood and its gradient are the op of `paths.py`. The
network is trained first. What its scores are worth is learned on a part of the training data that it did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tapeless.kernels.cpu import load
from tapeless.labelling.genome.dna import STRANDS
from tapeless.labelling.genome.evidence import (
    Counts,
    GeneEvidence,
    Sites,
    Statistics,
    chosen_sites,
    count,
    evidence,
    learned,
    splice_sites,
    strands_of,
)
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.lattice import BETWEEN, EDGE, EXON, FEATURES, SPLICE, Lattice, Segments, build
from tapeless.labelling.genome.minimise import minimise
from tapeless.ops.contract import Array

# The mean of a weight before any gene was seen, in the order of FEATURES, and one over its variance.
USUAL = np.array([-1.0, 3.5, 1.0, -1.0, -1.0, 1.0, 2.0, -2.0, 0.0, -2.0, 1.0, -4.0, 2.0, -1.0])
PRIOR = 0.3
PARTS = 5  # of the training data; each is judged by what was counted in the others
LONGEST_PART, MOST_WEIGHED = 1 << 20, 1 << 22  # bases; all is counted, and weights are learned from so many
NETWORK = FEATURES.index("network")
DOUBT = 10.0  # the same of what a network is worth: there are few genes to learn it from
GENE = FEATURES.index("gene")
MOST_ODDS = 5.0  # a network's log-odds of one base are cut off there


@dataclass(frozen=True)
class Annotated:
    """A stretch of a sequence: its digits, its genes, and of both strands the label of each base and, where a network
    has not seen it, the log-odds that it gives; all in the coordinates of the + strand."""

    digits: Array
    genes: tuple[Gene, ...]
    labels: tuple[Array, Array]
    network: tuple[Array, Array] | None = None
    cuts: tuple[bool, bool] = (False, False)  # whether the sequence goes on to the left, and to the right


@dataclass(frozen=True)
class GeneDecoder:
    code: GeneticCode
    statistics: Statistics
    sites: Sites
    weights: Array
    gained: float | None = None  # by the network, of the log-likelihood of genes that it has not seen

    @property
    def uses_network(self) -> bool:
        return bool(self.weights[NETWORK])

    def lattice(self, digits: Array, network: tuple[Array, Array] | None, cuts: tuple[bool, bool]) -> Lattice:
        strands = strands_of(digits)
        logits = (None, None) if network is None else (network[0], network[1][::-1])
        found = [evidence(own, self.statistics, odds) for own, odds in zip(strands, logits, strict=True)]
        return _lattice(strands, found, self.code, self.sites, cuts)

    def document(self) -> dict[str, Any]:
        return {
            "code": {"number": self.code.number, "starts": list(self.code.starts)},
            "statistics": self.statistics.document(),
            "sites": asdict(self.sites),
            "weights": dict(zip(FEATURES, self.weights.tolist(), strict=True)),
            "gained": self.gained,
        }

    @staticmethod
    def of(document: dict[str, Any]) -> GeneDecoder:
        """What `document` told; ValueError, TypeError or KeyError where it is none."""
        shapes = {"codons": (65,), "start": (15, 5), "donor": (9, 5), "acceptor": (18, 5)}
        arrays = {name: np.array(document["statistics"][name], np.float64) for name in shapes}
        weights = np.array([document["weights"][name] for name in FEATURES], np.float64)
        sound = all(arrays[name].shape == shape for name, shape in shapes.items())
        if not sound or not all(np.isfinite(each).all() for each in (weights, *arrays.values())):
            raise ValueError("no statistics")
        code = GeneticCode(document["code"]["number"], tuple(document["code"]["starts"]))
        return GeneDecoder(code, Statistics(**arrays), Sites(**document["sites"]), weights, document["gained"])


def _lattice(
    strands: tuple[Array, Array],
    found: Sequence[GeneEvidence],
    code: GeneticCode,
    sites: Sites,
    cuts: tuple[bool, bool],
) -> Lattice:
    for own, each in zip(strands, found, strict=True):
        splice_sites(own, each, sites)
    return build(strands, (found[0], found[1]), code, sites, cuts)


class Likelihood:
    """The op on one lattice, bound once: log-likelihood of a path and its gradient for any weights."""

    def __init__(self, lattice: Lattice, path: Array) -> None:
        op = load("tapeless.labelling.genome.paths_cpu")
        segments = lattice.segments
        self.features = segments.features.astype(np.float64)
        self.path = path.astype(np.float64)
        self.scores, self.loss, self.alpha = np.zeros(len(segments)), np.zeros(1), np.zeros(lattice.nodes)
        self.gradient, beta = np.zeros(len(segments)), np.zeros(lattice.nodes)
        ends = segments.source, segments.target
        self._calls = op.forward(self.loss, self.alpha, self.scores, *ends, self.path)
        self._calls += op.backward(self.gradient, self.alpha, self.scores, *ends, self.path, [beta])
        self._best, self._before = np.zeros(lattice.nodes), np.zeros(lattice.nodes, np.int64)
        self._viterbi = op.best_path(self._best, self._before, self.scores, *ends)
        self._source = segments.source

    def at(self, weights: Array) -> tuple[float, Array]:
        self.scores[:] = self.features @ weights
        for call in self._calls:
            call()
        return float(self.loss[0]), self.features.T @ self.gradient

    def best(self, weights: Array) -> list[int]:
        """The segments of the likeliest path, from left to right."""
        self.scores[:] = self.features @ weights
        for call in self._viterbi:
            call()
        found, node = [], len(self._best) - 1
        while node:
            found.append(int(self._before[node]))
            node = self._source[found[-1]]
        return found[::-1]


def learn(parts: Sequence[Annotated], code: GeneticCode, network: Sequence[Annotated] = ()) -> GeneDecoder:
    """`parts`: what is counted and weighed. `network`: stretches of it with scores of a network that did not see them,
    by which their worth is learned."""
    pieces, statistics, sites = _cross_counted(parts)
    likelihoods = [Likelihood(*_training_lattice(part, found, code, sites)) for part, found in pieces]

    def objective(weights: Array) -> tuple[float, Array]:
        value, gradient = _sum(likelihoods, weights)
        off: Array = weights - USUAL
        return value + PRIOR / 2 * float(off @ off), gradient + PRIOR * off

    decoder = GeneDecoder(code, statistics, sites, minimise(objective, USUAL))
    return decoder if not network else with_network(decoder, network)


def with_network(decoder: GeneDecoder, parts: Sequence[Annotated]) -> GeneDecoder:
    """Letters and network in the proportion that fits best: three numbers, as there is little to learn them from.

    The letters alone where the network makes the genes of these parts no likelier than three numbers do by chance
    (Schwarz, "Estimating the dimension of a model", Annals of Statistics 1978).
    """
    few = parts[: MOST_WEIGHED // LONGEST_PART]
    likelihoods = [
        Likelihood(*_with_truth(decoder.lattice(part.digits, part.network, part.cuts), part)) for part in few
    ]
    directions = np.zeros((3, len(FEATURES)))
    directions[0], directions[1, NETWORK], directions[2, GENE] = decoder.weights, 1, 1
    usual = np.array([1.0, 0, 0])

    def objective(mixed: Array) -> tuple[float, Array]:
        value, gradient = _sum(likelihoods, mixed @ directions)
        off: Array = mixed - usual
        return value + DOUBT / 2 * float(off @ off), directions @ gradient + DOUBT * off

    mixed = minimise(objective, usual)
    genes = sum(len(part.genes) for part in few)
    gained = objective(usual)[0] - objective(mixed)[0]
    better = gained > len(mixed) / 2 * np.log(max(genes, 2)) and mixed[1] > 0
    return replace(decoder, weights=mixed @ directions, gained=gained) if better else replace(decoder, gained=gained)


def _sum(likelihoods: Sequence[Likelihood], weights: Array) -> tuple[float, Array]:
    values = [each.at(weights) for each in likelihoods]
    return sum(value for value, _ in values), np.sum([gradient for _, gradient in values], axis=0)


def _cross_counted(
    parts: Sequence[Annotated],
) -> tuple[list[tuple[Annotated, list[GeneEvidence]]], Statistics, Sites]:
    """Parts to weigh with evidence that was not counted near by: a fifth of every part is judged by the other four.
    Statistics of everything; which sites are looked at."""
    edges = [np.linspace(0, len(part.digits), PARTS + 1).astype(int).tolist() for part in parts]
    counts = [
        _added(
            [
                count(part.digits, part.genes, part.labels, *span[k : k + 2])
                for part, span in zip(parts, edges, strict=True)
            ]
        )
        for k in range(PARTS)
    ]
    whole = _added(counts)
    others = [learned(_added(counts[:k] + counts[k + 1 :])) for k in range(PARTS)]
    pieces: list[tuple[Annotated, list[GeneEvidence]]] = []
    weighed = 0
    for part, span in zip(parts, edges, strict=True):
        if pieces and weighed + len(part.digits) > MOST_WEIGHED:
            break
        weighed += len(part.digits)
        strands = strands_of(part.digits)
        found = [evidence(own, others[0]) for own in strands]
        for k in range(1, PARTS):
            _replace(found, strands, others[k], *span[k : k + 2])
        pieces.append((part, found))
    strands_found = [pair for part, found in pieces for pair in zip(strands_of(part.digits), found, strict=True)]
    return pieces, learned(whole), chosen_sites(strands_found, _true_sites(pieces), whole.introns)


def _added(counts: Sequence[Counts]) -> Counts:
    total = counts[0]
    for each in counts[1:]:
        total = total + each
    return total


def _replace(
    found: list[GeneEvidence], strands: tuple[Array, Array], statistics: Statistics, first: int, last: int
) -> None:
    """By what other statistics say of the bases `first` … `last` of the + strand."""
    for strand, own in enumerate(strands):
        here = slice(first, last) if strand == 0 else slice(len(own) - last, len(own) - first)
        other = evidence(own, statistics, None)
        for name in ("codons", "starts", "donor_scores", "acceptor_scores"):
            getattr(found[strand], name)[here] = getattr(other, name)[here]


def _true_sites(pieces: Sequence[tuple[Annotated, list[GeneEvidence]]]) -> tuple[list[float], list[float]]:
    donors, acceptors = [], []
    for part, found in pieces:
        for gene in part.genes:
            strand, length = STRANDS.index(gene.strand), len(part.digits)
            exons = gene.ordered()
            if strand:
                exons = tuple((length - end, length - start) for start, end in exons)
            donors += [float(found[strand].donor_scores[end]) for _, end in exons[:-1]]
            acceptors += [float(found[strand].acceptor_scores[start]) for start, _ in exons[1:]]
    return donors, acceptors


def _training_lattice(
    part: Annotated, found: list[GeneEvidence], code: GeneticCode, sites: Sites
) -> tuple[Lattice, Array]:
    return _with_truth(_lattice(strands_of(part.digits), found, code, sites, part.cuts), part)


def _with_truth(lattice: Lattice, part: Annotated) -> tuple[Lattice, Array]:
    """The path of the annotated genes, longest first where some overlap; without segments where nobody knows."""
    length = lattice.length
    taken, unknown = np.zeros(length, bool), np.stack([labels < 0 for labels in part.labels])
    true: list[int] = []
    lookup = _lookup(lattice.segments)
    for gene in sorted(part.genes, key=lambda each: -each.length):
        path = _path(gene, lookup, lattice.segments)
        if path is None or taken[gene.left : gene.right].any():
            for start, end in gene.exons:
                unknown[STRANDS.index(gene.strand), start:end] = True
        else:
            taken[gene.left : gene.right] = True
            true += path
    segments = lattice.segments
    path_of = np.zeros(len(segments), bool)
    path_of[true] = True
    covered = np.append(0, np.cumsum(taken))
    free = (segments.kind == BETWEEN) & (covered[segments.left] == covered[segments.right])
    sums: Array = np.append(np.zeros((2, 1), np.int64), np.cumsum(unknown, axis=1), axis=1)
    hidden: Array = sums[segments.strand, segments.right] - sums[segments.strand, segments.left]
    kept = path_of | (segments.kind != EXON) | (2 * hidden <= segments.right - segments.left)
    return Lattice(segments.chosen(kept), lattice.nodes, length), (path_of | free)[kept]


def _lookup(segments: Segments) -> dict[tuple[int, ...], list[int]]:
    """Segments of genes by kind, strand and place."""
    found: dict[tuple[int, ...], list[int]] = {}
    columns = (segments.kind, segments.strand, segments.left, segments.right)
    for number, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if key[0] != BETWEEN:
            found.setdefault(key, []).append(number)
    return found


def _path(gene: Gene, lookup: dict[tuple[int, ...], list[int]], segments: Segments) -> list[int] | None:
    """The segments of a gene from left to right; None where the lattice does not have it."""
    strand = STRANDS.index(gene.strand)
    pieces: list[tuple[int, int, int]] = []
    for number, (start, end) in enumerate(gene.exons):
        if number:
            pieces.append((2, gene.exons[number - 1][1], start))
        pieces.append((EXON, start, end))
    phases = gene.phases() if strand == 0 else gene.phases()[::-1]
    ends: list[tuple[int, list[int]]] = [(-1, [])]
    for number, (kind, left, right) in enumerate(pieces):
        grown = []
        for segment in lookup.get((kind, strand, left, right), ()):
            if kind == EXON and segments.frame[segment] != phases[number // 2]:
                continue
            for node, path in ends:
                if node < 0 or segments.source[segment] == node:
                    grown.append((int(segments.target[segment]), [*path, segment]))
        ends = grown
    whole = [path for _, path in ends if _is_whole(gene, path, segments)]
    return whole[0] if whole else None


def _is_whole(gene: Gene, path: list[int], segments: Segments) -> bool:
    """Whether it is cut short where, and only where, the gene is."""
    first, last = (path[0], path[-1]) if gene.strand == "+" else (path[-1], path[0])
    return bool((segments.begins[first] == EDGE) != gene.has_start and (segments.ends[last] == EDGE) != gene.has_stop)


@dataclass(frozen=True)
class Decoded:
    """Genes from left to right, and of both strands the probability of each base to be coding."""

    genes: list[Gene]
    probabilities: Array  # (2, bases)


def decode(
    decoder: GeneDecoder,
    digits: Array,
    network: tuple[Array, Array] | None,
    cuts: tuple[bool, bool] = (False, False),
    allowed: Array | None = None,
) -> Decoded:
    """`allowed`: where genes may lie, True or False by base."""
    lattice = decoder.lattice(digits, network, cuts)
    if allowed is not None:
        lattice = _allowed(lattice, allowed)
    segments = lattice.segments
    likelihood = Likelihood(lattice, np.zeros(len(segments)))
    likelihood.at(decoder.weights)
    shares = np.minimum(likelihood.gradient, 1.0)
    exons = np.flatnonzero(segments.kind == EXON)
    steps = np.zeros((2, lattice.length + 1))
    np.add.at(steps, (segments.strand[exons], segments.left[exons]), shares[exons])
    np.add.at(steps, (segments.strand[exons], segments.right[exons]), -shares[exons])
    probabilities = np.clip(np.cumsum(steps[:, :-1], axis=1), 0, 1).astype(np.float32)
    return Decoded(_genes(likelihood.best(decoder.weights), segments, shares), probabilities)


def _allowed(lattice: Lattice, allowed: Array) -> Lattice:
    outside = np.append(0, np.cumsum(~allowed))
    segments = lattice.segments
    kept = (segments.kind == BETWEEN) | (outside[segments.left] == outside[segments.right])
    return Lattice(segments.chosen(kept), lattice.nodes, lattice.length)


def _genes(path: list[int], segments: Segments, shares: Array) -> list[Gene]:
    """Of a path the genes, each with the least probability of its segments."""
    found: list[Gene] = []
    pieces: list[int] = []
    for number in path:
        if segments.kind[number] == BETWEEN:
            continue
        pieces.append(number)
        right = segments.ends if segments.strand[number] == 0 else segments.begins
        if segments.kind[number] == EXON and right[number] != SPLICE:
            found.append(_gene(pieces, segments, shares))
            pieces = []
    return found


def _gene(pieces: list[int], segments: Segments, shares: Array) -> Gene:
    exons = [number for number in pieces if segments.kind[number] == EXON]
    strand = int(segments.strand[exons[0]])
    first, last = (exons[0], exons[-1]) if strand == 0 else (exons[-1], exons[0])
    return Gene(
        STRANDS[strand],
        tuple((int(segments.left[number]), int(segments.right[number])) for number in exons),
        int(segments.frame[first]),
        bool(segments.begins[first] != EDGE),
        bool(segments.ends[last] != EDGE),
        float(np.clip(shares[pieces].min(), 0, 1)),
    )
