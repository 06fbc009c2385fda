"""A transformer that reads on from where it stopped: the programs of sampling.

Keys and values of all positions so far lie in a cache, which both programs share: *reading* takes several positions
at a time and only fills the cache, *decoding* takes one and says the scores of what may come next. How many positions
came before is an input, so neither list ever changes.
"""

from __future__ import annotations

from tapeless.errors import TapelessError
from tapeless.models.blocks import reading_forward, stack_forward
from tapeless.models.config import Architecture, Preset
from tapeless.models.transformer import declare, front_forward, reader, write_scores
from tapeless.program.call import Program

CHUNK = 64  # positions read at a time: enough that the products, and not the reading of the weights, take the time


def check_decodable(c: Architecture) -> None:
    """A cache holds what later positions see of earlier ones, so earlier ones must not change when later ones come."""
    reason = (
        "reads features"
        if c.features
        else "sees the future (causal=False)"
        if not c.causal
        else "answers once per sequence (readout='last')"
        if c.readout == "last"
        else None
    )
    if reason:
        raise TapelessError(f"this model {reason}, so it cannot generate token by token; use model.logits.")


def decoding(preset: Preset) -> Program:
    """One position through the whole model: its scores."""
    p = reader(preset)
    write_scores(p, declare(p, preset, 1, 1, cached=True))
    return p.verified()


def reading(preset: Preset, time: int) -> Program:
    """`time` positions into the cache. It ends with the last block's keys and values: nothing else is seen later."""
    p = reader(preset)
    n = declare(p, preset, 1, time, cached=True)
    x, _ = stack_forward(p, n.blocks[:-1], front_forward(p, n))
    with p.section(f"blocks.{preset.architecture.layers - 1}"):
        reading_forward(p, n.blocks[-1], x)
    return p.verified()
