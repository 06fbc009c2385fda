"""Proximity: how near a state is to every embedding, for models that predict in embedding space.

(1)  y[r, v] = −‖x_r − weight_v‖² = 2 x_r · weight_v − ‖x_r‖² − ‖weight_v‖²

The largest is the nearest embedding, so argmax reads it like any other score. With n_r = Σ_v dy[r, v] and
m_v = Σ_r dy[r, v]:

(2)  dx_r = 2 (Σ_v dy[r, v] weight_v − n_r x_r)
(3)  dweight_v = 2 (Σ_r dy[r, v] x_r − m_v weight_v)
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec, product_flops

SPEC = Spec(
    name="proximity",
    shapes={"y": "R V", "x": "R C", "weight": "V C"},
    meanings={"weight": "vocabulary"},
    forward=Signature(writes={"y": "−‖x − weight‖²"}, reads=("x", "weight")),
    backward=Signature(
        writes={"dx": "2·(dy @ weight − x·Σ_V dy)", "dweight": "2·(dyᵀ @ x − weight·Σ_R dy)"},
        reads=("dy", "x", "weight"),
    ),
)


def forward(y: Array, x: Array, weight: Array) -> None:
    np.matmul(2 * x, weight.T, out=y)  # (1)
    y -= (x * x).sum(axis=1)[:, None]
    y -= (weight * weight).sum(axis=1)


def backward(
    dx: Array,
    dweight: Array,
    dy: Array,
    x: Array,
    weight: Array,
) -> None:
    dx[...] = 2 * (dy @ weight - x * dy.sum(axis=1)[:, None])  # (2)
    dweight[...] = 2 * (dy.T @ x - weight * dy.sum(axis=0)[:, None])  # (3)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return product_flops(dims, "RCV", 1 if direction == "forward" else 2)


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(4, 3)), "weight": rng.normal(size=(5, 3))}
