"""DNA as a complex signal: A is 1 + i, T is 1 − i, G is −1 + i, C is −1 − i.

The real part tells A and T from G and C, the imaginary part A and G from T and C. The complement A↔T, G↔C is the
complex conjugate, so the opposite strand, read in its own direction, is the conjugate of the signal reversed.
A letter that stands for several bases is their mean, which conjugation respects as well; N is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops.contract import Array

STRANDS = ("+", "-")
CORNERS = {"A": 1 + 1j, "T": 1 - 1j, "G": -1 + 1j, "C": -1 - 1j}
OPPOSITE = {"A": "T", "T": "A", "G": "C", "C": "G"}
STANDS_FOR = {
    "A": "A",
    "C": "C",
    "G": "G",
    "T": "T",
    "R": "AG",
    "Y": "CT",
    "S": "CG",
    "W": "AT",
    "K": "GT",
    "M": "AC",
    "B": "CGT",
    "D": "AGT",
    "H": "ACT",
    "V": "ACG",
    "N": "ACGT",
    "U": "T",
}
DIGITS = "ACGT"  # the order in which letters are counted, 0 to 3
NO_LETTER = 4  # the digit of what stands for several bases, or for none
BEYOND = 5  # of what lies beyond the ends of a sequence
PROTEIN = "EFILPQJOXZ*"
GAPS = "-.~"
PIECE = 1 << 20  # bases looked at in one go: what is needed beside the sequence itself stays small


def _tables() -> tuple[Array, Array, Array, Array]:
    """By letter code: is it a nucleotide's letter, its signal, the letter of its complement, its digit."""
    known = np.zeros(256, bool)
    digit = np.full(256, NO_LETTER, np.uint8)
    signal = np.zeros(256, np.complex64)
    complement = np.arange(256, dtype=np.uint8)
    letter_of = {frozenset(bases): letter for letter, bases in STANDS_FOR.items() if letter != "U"}
    for letter, bases in STANDS_FOR.items():
        other = letter_of[frozenset(OPPOSITE[base] for base in bases)]
        for code, opposite in ((ord(letter), ord(other)), (ord(letter.lower()), ord(other.lower()))):
            known[code] = True
            signal[code] = sum(CORNERS[base] for base in bases) / len(bases)
            complement[code] = opposite
            digit[code] = DIGITS.index(bases) if len(bases) == 1 else NO_LETTER
    return known, signal, complement, digit


_KNOWN, _SIGNAL, _COMPLEMENT, _DIGIT = _tables()


def check_bases(bases: Array, name: str) -> None:
    """Refuse what is no nucleotide sequence, with the first letter that tells; `name` says whose letters they are."""
    if not len(bases):
        raise TapelessError(f"{name} is empty: give at least one base.")
    for start in range(0, len(bases), PIECE):
        known = _KNOWN[bases[start : start + PIECE]]
        if not known.all():
            at = start + int(known.argmin())
            raise TapelessError(_refusal(name, at + 1, chr(bases[at])))


def _refusal(name: str, position: int, letter: str) -> str:
    found = f"{name} holds {letter!r} at position {position}"
    if letter.upper() in PROTEIN:
        return f"{found}, which stands for no nucleotide: this looks like a protein; give its DNA."
    if letter in GAPS:
        return f"{found}, a gap: give the sequence as it is, not aligned, because positions count bases."
    return f"{found}, which is no letter for nucleotides: use ACGT, U, N and the other IUPAC letters."


def encode(sequence: bytes | bytearray | Array, name: str = "the sequence") -> Array:
    """The complex64 signal of a sequence, given as ASCII letters in either case."""
    bases: Array = sequence if isinstance(sequence, np.ndarray) else np.frombuffer(sequence, np.uint8)
    if bases.ndim != 1 or bases.dtype != np.uint8:
        raise TapelessError(f"{name} must be bytes or a 1-D array of uint8, not {bases.ndim}-D {bases.dtype}.")
    check_bases(bases, name)
    signal: Array = _SIGNAL[bases]
    return signal


def reverse_complement(signal: Array) -> Array:
    """The opposite strand's signal, in the direction in which that strand is read."""
    opposite: Array = np.conj(signal[::-1])
    return opposite


def opposite_bases(bases: Array) -> Array:
    """The opposite strand's letters, in the direction in which that strand is read. Case is kept, U becomes A."""
    return _COMPLEMENT[bases[::-1]]


def digits_of(bases: Array) -> Array:
    """Letters as 0 to 3 in the order of ACGT, U as T, and 4 where a letter stands for several."""
    digits: Array = _DIGIT[bases]
    return digits


def opposite_digits(digits: Array) -> Array:
    """Of the opposite strand, in its own direction."""
    found: Array = np.where(digits >= NO_LETTER, digits, len(DIGITS) - 1 - digits)[::-1]
    return found


def digits_of_signal(signal: Array) -> Array:
    """The same from the signal: a corner is a letter, and whatever else is none."""
    digits = np.full(len(signal), NO_LETTER, np.uint8)
    for value, letter in enumerate(DIGITS):
        digits[signal == CORNERS[letter]] = value
    return digits


@dataclass(frozen=True)
class StrandSignal:
    """The signal of one strand in its own direction, encoded where it is sliced: one byte a base instead of eight."""

    bases: Array  # of the + strand, checked
    strand: str

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, part: slice) -> Array:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise TapelessError(f"a strand is sliced with a step of 1, not {step}.")
        if self.strand == "+":
            return _SIGNAL[self.bases[start:stop]]
        stop = max(start, stop)
        return reverse_complement(_SIGNAL[self.bases[len(self) - stop : len(self) - start]])
