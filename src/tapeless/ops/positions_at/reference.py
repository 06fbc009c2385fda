"""Positions from a place on: what `positions` is to a whole sequence, this is to the next part of one.

(1)  y[b, t] = table[position + t]               usually added to the token embedding

`position` counts the positions read before, so it changes from call to call and lies in a buffer. Forward only: it
serves decoding, which never goes back.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, store

SPEC = Spec(
    name="positions_at",
    shapes={"y": "B T C", "table": "P C", "position": "1"},
    roles={"position": "index"},
    meanings={"table": "position embeddings", "position": "cached length"},
    forward=Signature(writes={"y": "table[position:position + T]"}, reads=("table", "position"), adds=("y",)),
    refuse=lambda dims, scalars: (
        f"it has T={dims['T']} positions but the table holds only P={dims['P']}" if dims["T"] > dims["P"] else None
    ),
    full=("table",),
)


def forward(y: Array, table: Array, position: Array, add: frozenset[str] = NONE) -> None:
    start = int(position[0])
    store(y, table[start : start + y.shape[1]], "y" in add)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["B"] * dims["T"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"table": rng.normal(size=(7, 4)), "position": np.array([2]), "y": (3, 4, 4)}
