"""What blocks are made of. Each part declares its weights, their gradients and its activations, and has its forward
directly above its backward: one description for training, for a readout at the last position and for decoding.

A gradient that is None is that of a frozen weight. `p.active(x)` says whether x depends on a trained weight: only then
does anything go back to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tapeless.models.adapters import Adapters, adapters_of
from tapeless.models.config import Architecture, Preset
from tapeless.models.initialise import Scheme, scheme_of
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer

if TYPE_CHECKING:
    from tapeless.models.parts.dropout import Draws
    from tapeless.models.parts.rotary import Rotary


@dataclass
class Scope:
    """What every part of a model is declared with."""

    p: Builder
    preset: Preset
    batch: int
    time: int
    position: Buffer | None = None  # how many positions came before, if keys and values of them are cached
    rotary: Rotary | None = None
    draws: Draws | None = None  # of random numbers, if there is dropout
    c: Architecture = field(init=False)

    def __post_init__(self) -> None:
        self.c = self.preset.architecture

    @cached_property
    def scheme(self) -> Scheme:
        return scheme_of(self.c, self.preset.initialisation)

    @cached_property
    def adapters(self) -> Adapters | None:
        return adapters_of(self.preset)

    def activations(self, name: str, time: int, width: int, role: str = "activation") -> Buffer:
        """Declare numbers for each of so many positions of every sequence."""
        return self.p.workspace(name, self.batch, time, width, role=role)
