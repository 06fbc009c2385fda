"""DNA as a complex signal, against the definition written out letter by letter."""

from itertools import product

import numpy as np
import pytest
from Bio.Data.IUPACData import ambiguous_dna_values
from Bio.Seq import reverse_complement as biopython_reverse_complement
from hypothesis import given
from hypothesis import strategies as st

from tapeless import TapelessError
from tapeless.labelling.genome.dna import STANDS_FOR, StrandSignal, encode, opposite_bases, reverse_complement
from tests.random_cases import cases

LETTERS = "ACGTRYSWKMBDHVN"
SEQUENCES = st.text(LETTERS + LETTERS.lower(), min_size=1, max_size=200).map(str.encode)


def test_the_four_corners():
    np.testing.assert_array_equal(encode(b"ATGC"), [1 + 1j, 1 - 1j, -1 + 1j, -1 - 1j])
    assert encode(b"ATGC").dtype == np.complex64


def test_case_and_uracil_change_nothing():
    np.testing.assert_array_equal(encode(b"acgturyn"), encode(b"ACGTTRYN"))


def test_an_ambiguous_letter_is_the_mean_of_what_it_stands_for():
    for letter, bases in ambiguous_dna_values.items():
        if letter == "X":  # Biopython's own addition; protein here
            continue
        assert set(STANDS_FOR[letter]) == set(bases)
        np.testing.assert_allclose(encode(letter.encode())[0], encode(bases.encode()).mean(), atol=1e-7)
    assert encode(b"N")[0] == 0


@given(SEQUENCES)
@cases(100)
def test_the_opposite_strand_is_the_conjugate_reversed(sequence):
    opposite = biopython_reverse_complement(sequence.decode()).encode()
    np.testing.assert_array_equal(reverse_complement(encode(sequence)), encode(opposite))
    assert opposite_bases(np.frombuffer(sequence, np.uint8)).tobytes() == opposite
    np.testing.assert_array_equal(reverse_complement(reverse_complement(encode(sequence))), encode(sequence))


def test_a_strand_is_encoded_where_it_is_sliced():
    sequence = b"AACGTNR"
    bases = np.frombuffer(sequence, np.uint8)
    for strand, whole in (("+", encode(sequence)), ("-", reverse_complement(encode(sequence)))):
        signal = StrandSignal(bases, strand)
        assert len(signal) == len(sequence)
        for start, stop in product([None, *range(-9, 10)], repeat=2):
            np.testing.assert_array_equal(signal[start:stop], whole[start:stop])


def test_a_strand_goes_in_steps_of_one():
    with pytest.raises(TapelessError, match="step of 1, not 2"):
        StrandSignal(np.frombuffer(b"ACGT", np.uint8), "+")[::2]


MALFORMED = {
    b"": "seq is empty",
    b"ACGE": "'E' at position 4, which stands for no nucleotide: this looks like a protein",
    b"MKVLAT": "'L' at position 4.*protein",
    b"ACx": "'x' at position 3.*protein",
    b"ACG*": r"'\*' at position 4.*protein",
    b"AC-GT": "'-' at position 3, a gap",
    b"AC.GT": "'.' at position 3, a gap",
    b"AC1": "'1' at position 3, which is no letter for nucleotides",
    b"AC>": "'>' at position 3, which is no letter for nucleotides",
    b"\x00": r"'\\x00' at position 1, which is no letter",
}


@pytest.mark.parametrize("sequence", MALFORMED)
def test_what_is_no_dna(sequence):
    with pytest.raises(TapelessError, match=MALFORMED[sequence]):
        encode(sequence, "seq")


def test_arrays_that_are_no_letters():
    for array in (np.zeros(3), np.full((2, 2), 65, np.uint8)):
        with pytest.raises(TapelessError, match="must be bytes or a 1-D array of uint8"):
            encode(array)


def test_a_bad_letter_far_in_is_found_where_it_is():
    bases = np.full(3_000_000, ord("a"), np.uint8)
    bases[2_500_000] = ord("q")
    with pytest.raises(TapelessError, match="'q' at position 2500001"):
        encode(bases)
