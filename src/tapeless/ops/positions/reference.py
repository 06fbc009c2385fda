"""Positions: one row of a table per place in the sequence, the same for every sequence of the batch.

(1)  y[b, t] = table[t]                          usually added to the token embedding

(2)  dtable[t] = Σ_b dy[b, t]                    for t < T; rows beyond T are not used and get 0

The table is a weight (learned positions) or a constant (sinusoidal positions). With C channels the sinusoid of
"Attention is all you need" has, for channel pair 2i, 2i+1 and position t,

(3)  table[t, 2i] = sin(t / 10000^(2i/C)),   table[t, 2i+1] = cos(t / 10000^(2i/C))

A constant needs no gradient, so a program with sinusoidal positions has no backward call here.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, store

SPEC = Spec(
    name="positions",
    shapes={"y": "B T C", "table": "P C"},
    meanings={"table": "position embeddings"},
    forward=Signature(writes={"y": "table[:T]"}, reads=("table",), adds=("y",)),
    backward=Signature(writes={"dtable": "Σ_B dy"}, reads=("dy",), adds=("dtable",)),
    refuse=lambda dims, scalars: (
        f"it has T={dims['T']} positions but the table holds only P={dims['P']}"
        if dims.get("T", 0) > dims.get("P", 0)
        else None
    ),
    full=("table",),
)


def sinusoid(positions: int, channels: int) -> Array:
    rates = 10000.0 ** (-np.arange(0, channels, 2) / channels)
    angles = np.arange(positions)[:, None] * rates[None, :]
    table = np.empty((positions, channels))
    table[:, 0::2] = np.sin(angles)  # (3)
    table[:, 1::2] = np.cos(angles)[:, : channels // 2]
    return table


def forward(y: Array, table: Array, add: frozenset[str] = NONE) -> None:
    store(y, table[: y.shape[1]], "y" in add)  # (1)


def backward(dtable: Array, dy: Array, add: frozenset[str] = NONE) -> None:
    if "dtable" not in add:
        store(dtable, 0, add=False)
    dtable[: dy.shape[1]] += dy.sum(axis=0)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["B"] * dims["T"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"table": rng.normal(size=(5, 4)), "y": (3, 4, 4)}
