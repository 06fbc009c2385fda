"""Unembed: the score of every word of the vocabulary, for reading a model out.

(1)  y = x @ weightᵀ            y[r, v] = Σ_c x[r, c] · weight[v, c]
(2)  dx = dy @ weight
(3)  dweight = dyᵀ @ x

Training never stores these scores: there the classifier makes them a chunk of rows at a time.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec, product_flops

SPEC = Spec(
    name="unembed",
    shapes={"y": "R V", "x": "R C", "weight": "V C"},
    meanings={"weight": "vocabulary"},
    forward=Signature(writes={"y": "x @ weightᵀ"}, reads=("x", "weight")),
    backward=Signature(
        writes={"dx": "dy @ weight", "dweight": "dyᵀ @ x"},
        reads=("dy", "x", "weight"),
    ),
)


def forward(y: Array, x: Array, weight: Array) -> None:
    np.matmul(x, weight.T, out=y)  # (1)


def backward(
    dx: Array,
    dweight: Array,
    dy: Array,
    x: Array,
    weight: Array,
) -> None:
    dx[...] = dy @ weight  # (2)
    dweight[...] = dy.T @ x  # (3)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return product_flops(dims, "RCV", 1 if direction == "forward" else 2)


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(4, 3)), "weight": rng.normal(size=(5, 3))}
