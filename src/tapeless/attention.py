"""Attention maps: the weights with which every head averages its values, and where the loss wants them to be instead.

No backend keeps them, since T×T numbers a head are more than all else together; the log-sum-exp that it keeps instead
is for the backward. They are computed again here, from the queries and keys of a call, when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.ops.attention.reference import pulls, weights
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.backends.engine import Engine
    from tapeless.model import Model
    from tapeless.program.call import Call


@dataclass(frozen=True)
class Looked:
    """Of one block, (B, heads, queries, keys)."""

    weights: Array  # how much a query takes of each key; a row adds up to 1
    gradients: Array  # of the scores that the weights are the softmax of; a row adds up to 0


def attention_weights(engine: Engine) -> dict[str, Array]:
    """Run the engine's program, and give the weights of each section with attention, (B, H, T, S): how much query t
    takes of position s. Each row adds up to 1."""
    found = {}
    for call in engine.walk():
        if call.op == "attention":
            q, k = engine.read(call["q"]), engine.read(call["k"])
            found[call.section] = weights(q, k, call.dims["H"], _starts(engine, call), **dict(call.scalars))
    return found


def attention_pulls(model: Model, inputs: Any, targets: Any) -> dict[str, Looked]:
    """For a batch, by block. Where a gradient is negative, the loss falls when that query looks there more: training
    pulls it towards that key. The model's gradients are those of the batch afterwards."""
    model.feed(inputs, targets)
    found = {}
    for call in model.engine.walk("zero", "forward", "recompute", "backward"):
        if (call.op, call.direction) == ("attention", "backward"):
            dy, q, k, v = (model.engine.read(call[name]).astype(np.float64) for name in ("dy", "q", "k", "v"))
            starts = _starts(model.engine, call)
            found[call.section] = Looked(*pulls(dy, q, k, v, call.dims["H"], starts, **dict(call.scalars)))
    return dict(reversed(found.items()))  # the backward meets the last block first


def _starts(engine: Engine, call: Call) -> Array | None:
    """The first position that each query sees, in packed documents."""
    return engine.read(call["starts"]) if call.has("starts") else None
