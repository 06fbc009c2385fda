"""Who looks at whom: the weights with which every head averages its values.

No backend keeps them, since T×T numbers a head are more than all else together; the log-sum-exp that it keeps instead
is for the backward. Whoever wants to see them has them computed again here, from the queries and keys of a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tapeless.ops.attention.reference import weights
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.backends.engine import Engine


def attention_weights(engine: Engine) -> dict[str, Array]:
    """Run the engine's program, and of each section with attention have its weights, (B, H, T, S): how much query t
    takes of position s. Each row adds up to 1."""
    found = {}
    for call in engine.walk():
        if call.op == "attention":
            q, k = engine.read(call["q"]), engine.read(call["k"])
            starts = engine.read(call["starts"]) if call.has("starts") else None
            found[call.section] = weights(q, k, call.dims["H"], starts, **dict(call.scalars))
    return found
