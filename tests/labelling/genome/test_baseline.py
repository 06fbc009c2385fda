"""The codon baseline against its definition written with loops, and against counting letters on a synthetic genome."""

import numpy as np
import pytest

from tapeless.labelling.genome import baseline
from tapeless.labelling.genome.baseline import Baseline, fit, predict, score
from tapeless.labelling.genome.codons import codon_indices, codons_in_frame
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.intervals import mask
from tapeless.labelling.genome.synthetic import LETTERS, Synthetic, codon_usage

LENGTH = 120_000


@pytest.fixture(scope="module")
def genome():
    chromosomes = [Synthetic(2).chromosome(number, LENGTH) for number in (1, 2, 3)]
    bases = {each.name: each.bases for each in chromosomes}
    exons = {
        (each.name, strand): mask(
            np.array([exon for gene in each.genes if gene.strand == strand for exon in gene.exons]), LENGTH
        ).view(np.int8)
        for each in chromosomes
        for strand in "+-"
    }
    return {name: bases[name] for name in ("chr1", "chr2")}, {"chr3": bases["chr3"]}, exons


@pytest.fixture(scope="module")
def learned(genome):
    return fit(genome[0], genome[2])


def test_codons_in_the_order_of_their_letters():
    found = codon_indices(np.frombuffer(b"AAACguTNTT", np.uint8))
    assert found.tolist() == [0, 1, 6, 27, 47, 64, 64, 64, 64, 64]
    assert codon_indices(np.frombuffer(b"A", np.uint8)).tolist() == [64]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 200])
def test_scores_by_the_definition(length):
    random = np.random.default_rng(length)
    bases = random.choice(np.frombuffer(b"ACGTN", np.uint8), length, p=[0.24] * 4 + [0.04])
    odds = np.append(random.standard_normal(64), 0.0)
    codons = codon_indices(bases)
    for window in (6, 14, 60):
        expected = []
        for at in range(length):
            left, right = max(at - window // 2, 0), min(at + window // 2, length)
            means = []
            for frame in range(3):
                inside = [odds[codons[start]] for start in range(left + frame, right - 2, 3)]
                means.append(sum(inside) / max(len(inside), 1))
            expected.append(max(means))
        for piece in (1, 7, 1000):
            scores = np.concatenate(list(baseline._window_scores(codons, odds, window, piece)))
            np.testing.assert_allclose(scores, expected, atol=1e-12)
        threshold = float(np.median(expected)) + 1e-9
        found = predict(Baseline(odds, window, threshold), bases, "+")
        np.testing.assert_array_equal(found, np.array(expected) >= threshold)


def test_each_exon_is_read_in_its_best_frame():
    random = np.random.default_rng(0)
    codons = codon_indices(random.choice(LETTERS, 300))
    odds = np.append(random.standard_normal(64), 0.0)
    exons = np.array([[0, 2], [4, 8], [9, 12], [20, 61], [70, 200], [299, 300]])
    expected = np.zeros(64)
    for start, end in exons.tolist():
        frames = [[codons[at] for at in range(start + frame, end - 2, 3)] for frame in range(3)]
        for codon in max(frames, key=lambda frame: sum(odds[codon] for codon in frame)):
            expected[codon] += 1
    np.testing.assert_array_equal(codons_in_frame(codons, exons, odds), expected)


def test_the_minus_strand_is_the_plus_strand_turned(learned, genome):
    bases = genome[1]["chr3"]
    np.testing.assert_array_equal(predict(learned, bases, "-"), predict(learned, opposite_bases(bases), "+")[::-1])


def test_the_log_odds_are_those_of_the_species(learned):
    """The frames are found without being told: the table comes out as it was drawn."""
    codons, shares = codon_usage()
    background = np.prod(np.where((codons == ord("A")) | (codons == ord("T")), 0.28, 0.22), axis=1)
    drawn = np.log(shares / background)
    index = [int(codon_indices(codon)[0]) for codon in codons]
    often = shares > 0.005
    assert np.corrcoef(learned.odds[index][often], drawn[often])[0, 1] > 0.97
    stops = codon_indices(np.frombuffer(b"TAATAGTGA", np.uint8))[::3]
    assert (learned.odds[stops] < -1.5).all()


def test_the_threshold_is_the_best_on_what_was_trained_on(learned, genome):
    training, _, exons = genome
    best = score(learned, training, exons).f1
    for other in (learned.threshold - 0.05, learned.threshold + 0.05):
        assert score(Baseline(learned.odds, learned.window, other), training, exons).f1 < best


def test_codons_tell_what_letters_do_not(learned, genome):
    training, held_out, exons = genome
    codons = score(learned, held_out, exons)
    assert 0.8 < codons.f1 < 0.97
    letters = max(_letters_alone(training, held_out, exons, window) for window in (60, 120, 240, 480))
    assert letters < 0.4


def _letters_alone(training, held_out, exons, window):
    """The best F1 that log-odds of single letters in a window reach, with the threshold chosen on the answer itself."""
    counts = np.ones((2, 4))
    for digits, truth in _strands(training, exons):
        for label in (0, 1):
            counts[label] += np.bincount(digits[truth == label], minlength=4)
    shares = counts / counts.sum(axis=1, keepdims=True)
    odds = np.log(shares[1] / shares[0])
    scores, truths = [], []
    for digits, truth in _strands(held_out, exons):
        scores.append(np.convolve(odds[digits], np.ones(window), mode="same"))
        truths.append(truth)
    truth = np.concatenate(truths)[np.argsort(-np.concatenate(scores))]
    return (2 * np.cumsum(truth, dtype=float) / (np.arange(1, len(truth) + 1) + truth.sum())).max()


def _strands(bases, exons):
    for name, letters in bases.items():
        digits = np.searchsorted(LETTERS, letters)
        yield digits, exons[name, "+"]
        yield 3 - digits, exons[name, "-"]


def test_exons_shorter_than_a_codon_and_sequences_without(genome):
    training, _, exons = genome
    more = {**training, "tiny": np.frombuffer(b"ACGTA", np.uint8), "bare": np.frombuffer(b"NNNNACGT", np.uint8)}
    odd = {
        ("tiny", "+"): np.array([0, 0, 0, 1, 1]),
        ("tiny", "-"): np.array([1, 0, 0, 0, 0]),
        ("bare", "+"): np.zeros(8, int),
        ("bare", "-"): np.zeros(8, int),
    }
    np.testing.assert_allclose(odds(more, exons | odd), odds(training, exons), atol=1e-2)


def odds(bases, labels):
    learned = fit(bases, labels)
    assert learned is not None
    return learned.odds


def test_nothing_to_learn_from():
    bases = {"a": np.frombuffer(b"ACGTACGTACGT", np.uint8)}
    for exons in (np.zeros(12, int), np.ones(12, int)):
        assert fit(bases, {("a", "+"): exons, ("a", "-"): exons}) is None


def test_what_is_not_known_is_neither_learned_from_nor_scored(learned, genome):
    """Unknown labels in place of half of everything: the same as if those bases were in no sequence at all."""
    training, held_out, exons = genome
    halves = {key: np.where(np.arange(LENGTH) < LENGTH // 2, each, -1) for key, each in exons.items()}
    short = {name: letters[: LENGTH // 2] for name, letters in training.items()}
    cut = {key: each[: LENGTH // 2] for key, each in exons.items()}
    np.testing.assert_allclose(odds(training, halves), odds(short, cut), atol=0.02)
    known = score(learned, held_out, halves)
    assert known.true == sum(int(cut["chr3", strand].sum()) for strand in "+-")
    found = [predict(learned, held_out["chr3"], strand)[: LENGTH // 2] for strand in "+-"]
    assert known.predicted == sum(int(each.sum()) for each in found)
