"""Genetic codes by their NCBI number: which codons stop a protein, which amino acid each of the others stands for.

Each is told by what it changes in the standard code (https://www.ncbi.nlm.nih.gov/Taxonomy/Utils/wprintgc.cgi).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tapeless.errors import TapelessError
from tapeless.labelling.genome.codons import CODONS, codon_indices
from tapeless.ops.contract import Array

STANDARD = "KNKNTTTTRSRSIIMIQHQHPPPPRRRRLLLLEDEDAAAAGGGGVVVV*Y*YSSSS*CWCLFLF"  # AAA, AAC, AAG, AAT, ACA, …, TTT
STOP, UNKNOWN = "*", "X"
CHANGES = {
    1: "",
    2: "AGA* AGG* ATAM TGAW",
    3: "ATAM CTTT CTCT CTAT CTGT TGAW",
    4: "TGAW",
    5: "AGAS AGGS ATAM TGAW",
    6: "TAAQ TAGQ",
    9: "AAAN AGAS AGGS TGAW",
    10: "TGAC",
    11: "",
    12: "CTGS",
    13: "AGAG AGGG ATAM TGAW",
    14: "AAAN AGAS AGGS TAAY TGAW",
    15: "TAGQ",
    16: "TAGL",
    21: "TGAW ATAM AGAS AGGS AAAN",
    22: "TCA* TAGL",
    23: "TTA*",
    24: "AGAS AGGK TGAW",
    25: "TGAG",
    26: "CTGA",
    29: "TAAY TAGY",
    30: "TAAE TAGE",
    33: "TAAY TGAW AGAS AGGK",
}


def _indices(codons: Sequence[str]) -> Array:
    found: Array = codon_indices(np.frombuffer("".join(codons).encode(), np.uint8))[::3]
    return found


@dataclass(frozen=True)
class GeneticCode:
    """A code by its number, and the codons that a protein may begin with."""

    number: int = 1
    starts: tuple[str, ...] = ("ATG",)
    amino_acids: str = field(init=False, repr=False)  # by codon, 0 … 64: the last one is not known

    def __post_init__(self) -> None:
        if self.number not in CHANGES:
            known = ", ".join(map(str, CHANGES))
            raise TapelessError(f"there is no genetic code {self.number!r} here: give one of {known}.")
        letters = [*STANDARD, UNKNOWN]
        for change in CHANGES[self.number].split():
            letters[int(_indices([change[:3]])[0])] = change[3]
        object.__setattr__(self, "amino_acids", "".join(letters))
        for start in self.starts:
            if len(start) != 3 or set(start) - set("ACGT") or self.is_stop[_indices([start])[0]]:
                raise TapelessError(f"{start!r} is no start codon: give codons such as ATG, which are no stop.")
        if not self.starts:
            raise TapelessError("there is no start codon: give at least one, such as ATG.")

    @property
    def is_stop(self) -> Array:
        """(65,) by codon."""
        return np.array([letter == STOP for letter in self.amino_acids])

    @property
    def is_start(self) -> Array:
        """(65,) by codon."""
        return np.isin(np.arange(CODONS + 1), _indices(self.starts))

    def translate(self, bases: Array, starts: bool) -> str:
        """The protein of coding letters in their own direction, without its stop; a first codon that starts is M."""
        codons = codon_indices(bases)[: len(bases) - 2 : 3]
        protein = "".join(self.amino_acids[codon] for codon in codons)
        return ("M" + protein[1:] if starts else protein).removesuffix(STOP)
