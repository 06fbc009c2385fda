"""Adapt: a product of low rank, scaled, added to what a frozen matrix has made of the same input (LoRA).

The adapted product is x @ W + scale · (x @ A) @ B with A of C × M and B of M × F, where the rank M is far below C and
F. x @ A is a `linear`, whose result is `low`; this op is the rest, and adds to the product that is there:

(1)  y[r, f] += scale · Σ_m low[r, m] · weight[m, f]                weight is B

What is added to passes its gradient on as it is, so W sees the same dy, and its own backward stays as it was. For B and
for x @ A, with dy = ∂L/∂y:

     ∂L/∂low[r, m]    = scale · Σ_f dy[r, f] · weight[m, f]
     ∂L/∂weight[m, f] = scale · Σ_r low[r, m] · dy[r, f]

(2)  dlow    = scale · dy @ weightᵀ
(3)  dweight = scale · lowᵀ @ dy

B starts as 0, so that an adapted model begins as what it adapts: then dlow is 0, and A learns from the second step on.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, given, product_flops, store

SPEC = Spec(
    name="adapt",
    shapes={"y": "R F", "low": "R M", "weight": "M F"},
    meanings={"weight": "matrix", "scale": "adapter scale"},
    forward=Signature(writes={"y": "scale · low @ weight"}, reads=("low", "weight"), scalars=("scale",), adds=("y",)),
    backward=Signature(
        writes={"dlow": "scale · dy @ weightᵀ", "dweight": "scale · lowᵀ @ dy"},
        reads=("dy", "low", "weight"),
        scalars=("scale",),
        adds=("dlow", "dweight"),
        optional=("dlow", "dweight"),
    ),
)


def forward(y: Array, low: Array, weight: Array, scale: float, add: frozenset[str] = NONE) -> None:
    store(y, scale * (low @ weight), "y" in add)  # (1)


def backward(
    dlow: Array | None,
    dweight: Array | None,
    dy: Array,
    low: Array,
    weight: Array,
    scale: float,
    add: frozenset[str] = NONE,
) -> None:
    if dlow is not None:
        store(dlow, scale * (dy @ weight.T), "dlow" in add)  # (2)
    if dweight is not None:
        store(dweight, scale * (low.T @ dy), "dweight" in add)  # (3)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    rows = dims["R"] * dims["M"]
    if direction == "forward":
        return product_flops(dims, "RMF") + rows + dims["R"] * dims["F"]
    return product_flops(dims, "RMF", given(writes, "dlow", "dweight")) + given(writes, "dlow", "dweight") * rows


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"low": rng.normal(size=(5, 2)), "weight": rng.normal(size=(2, 4)), "scale": 0.7}
