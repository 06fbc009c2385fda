"""What a model reads at each position: families of features, one beside the other, computed block by block.

    wavelets     real and imaginary part at each scale                          any signal
    bases        which letters stand around a position                          DNA
    frames       how far each reading frame is open, and how long its reading   DNA
    opposite     the frames of the opposite strand                              DNA

Every family sees a bounded stretch around a position, so that the memory is that of a block, whatever the signal's
length, and blocks do not change what comes out. A run keeps the description, not the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.labelling.genome.codons import FRAMES
from tapeless.labelling.genome.neighbourhood import Bases, Family, Frames, Opposite, digits_around
from tapeless.labelling.signal.checks import checked_scales, checked_signal
from tapeless.labelling.signal.wavelet import SCALES, feature_blocks
from tapeless.models.config import check_size
from tapeless.ops.contract import Array

VERSION = 1
DNA = ("bases", "frames", "opposite")
FAMILIES = ("wavelets", *DNA)
BLOCK = 1 << 15  # positions at a time where no wavelets ask for a number of their own
MOST_ASIDE, LONGEST = 64, 65_535


@dataclass(frozen=True)
class Features:
    """Families in the order of their columns, and what each needs to know."""

    families: tuple[str, ...] = ("wavelets",)
    scales: tuple[float, ...] = SCALES
    bases_aside: int = 4  # letters to each side
    longest_frame: int = 3000  # bases to each side that an open frame is followed

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", checked_scales(self.scales))
        if not isinstance(self.families, tuple | list):
            raise TapelessError(f"families must be a sequence, not {self.families!r}.")
        object.__setattr__(self, "families", tuple(self.families))
        for family in self.families:
            if family not in FAMILIES:
                raise unknown("family of features", family, FAMILIES)
        if not self.families or len(set(self.families)) != len(self.families):
            raise TapelessError(f"families must be at least one of {', '.join(FAMILIES)}, each once.")
        sizes = (("bases_aside", self.bases_aside, MOST_ASIDE), ("longest_frame", self.longest_frame, LONGEST))
        for name, value, most in sizes:
            check_size(name, value)
            if value > most:
                raise TapelessError(f"{name} must be at most {most:,}, not {value:,}.")
        if self.longest_frame % FRAMES:
            raise TapelessError(
                f"longest_frame must be whole codons, a multiple of {FRAMES}, not {self.longest_frame:,}."
            )

    @property
    def width(self) -> int:
        """Numbers at each position."""
        return sum(2 * len(self.scales) if name == "wavelets" else self._local(name).width for name in self.families)

    def _local(self, name: str) -> Family:
        if name == "bases":
            return Bases(self.bases_aside)
        return (Frames if name == "frames" else Opposite)(self.longest_frame)

    def described(self) -> str:
        """For people."""
        if self.families == ("wavelets",):
            return f"{len(self.scales)} scales"
        return f"{', '.join(self.families)} with {len(self.scales)} scales"

    def document(self) -> dict[str, Any]:
        """What a run keeps."""
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Features:
        """What `document` told. ValueError, TypeError, KeyError or TapelessError where it is none."""
        given = dict(document)
        if given.pop("version") != VERSION:
            raise ValueError("another version")
        return Features(**given)

    def blocks(self, signal: Any, block: int | None = None) -> Iterator[tuple[int, Array]]:
        """(first position, float32 features of up to `block` positions), from left to right. All is checked before the
        first block."""
        dna = [name for name in self.families if name in DNA]
        if len(dna) < len(self.families):
            waves = feature_blocks(signal, self.scales, block)
        else:
            if block is not None:
                check_size("block", block)
            signal = checked_signal(signal)
            waves = _no_waves(len(signal), block or BLOCK)
        if dna and np.asarray(signal[:1]).dtype.kind != "c":
            raise TapelessError(f"{' and '.join(dna)} are features of DNA as a complex signal, and this one is real.")
        return self._blocks(signal, waves)

    def _blocks(self, signal: Any, waves: Iterator[tuple[int, Array]]) -> Iterator[tuple[int, Array]]:
        if self.families == ("wavelets",):
            yield from waves
            return
        for start, wave in waves:
            columns = []
            for name in self.families:
                if name == "wavelets":
                    columns.append(wave)
                else:
                    family = self._local(name)
                    digits = digits_around(signal, start - family.reach, start + len(wave) + family.reach)
                    columns.append(family.columns(digits))
            yield start, np.concatenate(columns, axis=1)


def _no_waves(length: int, block: int) -> Iterator[tuple[int, Array]]:
    for start in range(0, length, block):
        yield start, np.empty((min(block, length - start), 0), np.float32)
