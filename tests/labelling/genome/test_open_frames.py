"""The open-frame rule: against readings found with loops, in pieces, on both strands, and with the best length."""

import numpy as np
import pytest

from tapeless.labelling.genome import open_frames
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.open_frames import SHORTEST, fit, predict, readings, score

STOPS = ("TAA", "TAG", "TGA")
SENSE = [a + b + c for a in "ACGT" for b in "ACGT" for c in "ACGT" if a + b + c not in STOPS]


def letters(text):
    return np.frombuffer(text.encode(), np.uint8)


def plain_readings(text):
    """Frame by frame and codon by codon; one that is open at the end counts as the longest there is."""
    longest = [0] * len(text)
    for frame in range(3):
        begin = None
        for at in range(frame, len(text) - 2, 3):
            codon = text[at : at + 3]
            if begin is None and codon == "ATG":
                begin = at
            if codon in STOPS or "N" in codon:
                if begin is not None:
                    for inside in range(begin, at + 3):
                        longest[inside] = max(longest[inside], at + 3 - begin)
                begin = None
        if begin is not None:
            longest[begin:] = [open_frames.FOLLOWED.longest] * (len(text) - begin)
    return longest


@pytest.mark.parametrize("length", [1, 2, 3, 4, 31, 200, 3000])
def test_readings_by_their_definition_whatever_the_pieces(length):
    for seed, shares in enumerate([(0.24, 0.24, 0.24, 0.24, 0.04), (0.1, 0.4, 0.3, 0.2, 0.0)]):
        bases = np.random.default_rng((length, seed)).choice(letters("ACGTN"), length, p=shares)
        expected = plain_readings(bases.tobytes().decode())
        for piece in (1 + length // 3, length, 5000):
            found = list(readings(bases, "+", piece))
            assert [len(each) for each in found[:-1]] == [piece] * (len(found) - 1)
            np.testing.assert_array_equal(np.concatenate(found), expected)
        np.testing.assert_array_equal(np.concatenate(list(readings(opposite_bases(bases), "-"))), expected)


def gene(random, codons):
    return "ATG" + "".join(random.choice(SENSE, codons - 2)) + "TAA"


@pytest.fixture(scope="module")
def genome():
    """Readings of 120 bases that are no genes, and of 240 and 600 that are, on both strands; stops in all frames
    between."""
    random = np.random.default_rng(1)
    closed = "TTAATTAATTAA" * 5
    text = ""
    marks: list[tuple[int, int, str, bool]] = []
    for codons in (40, 80, 200, 40, 80, 40, 200):
        text += closed
        begin = len(text)
        made = gene(random, codons)
        strand = "+-"[len(marks) % 2]
        text += made if strand == "+" else opposite_bases(letters(made)).tobytes().decode()
        marks.append((begin, len(text), strand, codons > 40))
    text += closed
    labels = {("a", strand): np.zeros(len(text), np.int8) for strand in "+-"}
    for begin, end, strand, is_gene in marks:
        labels["a", strand][begin:end] = is_gene
    return {"a": letters(text)}, labels


def test_the_length_is_the_best_of_all_that_are_tried(genome):
    shortest = fit(*genome)
    best = score(shortest, *genome).f1
    assert best == max(score(each, *genome).f1 for each in SHORTEST)
    assert best > 0.8
    assert 120 < shortest <= 240
    assert score(60, *genome).f1 < best > score(270, *genome).f1


def test_what_is_found_on_the_minus_strand_lies_where_it_lies(genome):
    bases, labels = genome
    found = predict(200, bases["a"], "-")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, predict(200, opposite_bases(bases["a"]), "+")[::-1])
    assert found[labels["a", "-"] == 1].all()


def test_what_is_not_known_is_neither_learned_from_nor_scored(genome):
    bases, labels = genome
    unknown = {key: np.where(each == 0, -1, each) for key, each in labels.items()}
    assert fit(bases, unknown) == SHORTEST[0]  # nothing is wrong any more: the shortest finds the most
    assert score(SHORTEST[0], bases, unknown).precision == 1


def test_nothing_to_find_is_the_first_length():
    bases = {"a": letters("ACGTACGT")}
    labels = {("a", strand): np.zeros(8, np.int8) for strand in "+-"}
    assert fit(bases, labels) == SHORTEST[0]
    assert score(60, bases, labels).predicted == 0
