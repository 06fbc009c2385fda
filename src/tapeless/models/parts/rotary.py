"""Rotary positions: the angles of every token's place, made once and read by every block."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.config import Architecture
from tapeless.models.parts import Scope
from tapeless.ops.angles import reference as angles
from tapeless.ops.contract import Array
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, write


@dataclass(frozen=True)
class Rotary:
    places: Buffer  # of each token in its own document
    rates: Buffer
    cos: Buffer
    sin: Buffer
    starts: Buffer | None  # where its document begins in the row, where several may share one


def declare_rotary(s: Scope) -> Rotary:
    """Declare position ids and angles. Packed documents share a row if the model can take them; a cache holds one."""
    p, batch, time, pairs = s.p, s.batch, s.time, s.c.head_channels // 2
    packed = s.c.packable and s.position is None
    return Rotary(
        places=p.buffer("input", "places", (batch, time), "index", meaning="position ids"),
        rates=p.buffer("constant", "rotary.rates", (pairs,), "scalar", meaning="inverse frequencies"),
        cos=p.workspace("rotary.cos", batch, time, pairs, role="statistic", meaning="cosines"),
        sin=p.workspace("rotary.sin", batch, time, pairs, role="statistic", meaning="sines"),
        starts=p.buffer("input", "starts", (batch, time), "index", meaning="segment starts") if packed else None,
    )


def rotary_forward(p: Builder, r: Rotary) -> None:
    p.angles.forward(cos=write(r.cos), sin=write(r.sin), places=r.places, rates=r.rates)


def turning_rates(c: Architecture) -> Array:
    """How far each pair of a head's channels turns from one place to the next."""
    plain = angles.rates(c.head_channels // 2, c.rope_base)
    if c.rope_scaling == "linear":
        return angles.linear(plain, c.rope_factor)
    if c.rope_scaling == "llama3":
        return angles.llama3(plain, c.rope_factor, c.rope_low, c.rope_high, c.rope_old_context)
    return plain
