"""What every head looks at and where the loss wants it to look instead: T×T numbers a head, computed when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.ops.attention.reference import pulls
from tapeless.ops.contract import Array


@dataclass(frozen=True)
class Looked:
    """Of one block, (B, heads, queries, keys)."""

    weights: Array  # how much a query takes of each key; a row adds up to 1
    gradients: Array  # of the scores that the weights are the softmax of; a row adds up to 0


def attention_pulls(model: Model, inputs: Any, targets: Any) -> dict[str, Looked]:
    """For a batch, by block. Where a gradient is negative, the loss falls when that query looks there more: training
    pulls it towards that key. The model's gradients are those of the batch afterwards."""
    model.feed(inputs, targets)
    found = {}
    for call in model.engine.walk("zero", "forward", "recompute", "backward"):
        if (call.op, call.direction) == ("attention", "backward"):
            dy, q, k, v = (model.engine.read(call[name]).astype(np.float64) for name in ("dy", "q", "k", "v"))
            starts = model.engine.read(call["starts"]) if call.has("starts") else None
            found[call.section] = Looked(*pulls(dy, q, k, v, call.dims["H"], starts, **dict(call.scalars)))
    return dict(sorted(found.items(), key=lambda each: [int(x) if x.isdigit() else x for x in each[0].split(".")]))
