"""Token embedding: one row of the table per token.

(1)  y[r] = weight[tokens[r]]

Moving weight[v] moves every y[r] with tokens[r] = v by the same amount, so the gradient of a row of the table
is the sum over all places where its token stands:

(2)  dweight[v] = Σ_{r: tokens[r] = v} dy[r]

A token that stands twice is *added* twice: this is a scatter-add, and assigning instead would keep only
the last of them.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, store

SPEC = Spec(
    name="embedding",
    shapes={"y": "R C", "tokens": "R", "weight": "V C"},
    roles={"tokens": "index"},
    meanings={"tokens": "token ids", "weight": "vocabulary"},
    forward=Signature(writes={"y": "weight[tokens]"}, reads=("tokens", "weight")),
    backward=Signature(
        writes={"dweight": "Σ dy over the rows of each token"}, reads=("dy", "tokens"), adds=("dweight",)
    ),
    full=("weight",),
)


def forward(y: Array, tokens: Array, weight: Array) -> None:
    y[...] = weight[tokens]  # (1)


def backward(dweight: Array, dy: Array, tokens: Array, add: frozenset[str] = NONE) -> None:
    if "dweight" not in add:
        store(dweight, 0, add=False)
    np.add.at(dweight, tokens, dy)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["R"] * dims["C"] if direction == "backward" else 0


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"tokens": np.array([3, 1, 3, 0, 3]), "weight": rng.normal(size=(6, 4))}
