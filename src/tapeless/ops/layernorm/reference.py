"""LayerNorm: each row brought to mean 0 and variance 1, then scaled and shifted by channel.

(1)  mean = (1/C) Σ_c x_c,   rstd = 1 / √((1/C) Σ_c (x_c − mean)² + ε)
(2)  x̂ = (x − mean) · rstd,   y = x̂ · weight + bias

weight and bias reach all rows of their own channel:

(3)  dweight_c = Σ_r dy_rc · x̂_rc,   dbias_c = Σ_r dy_rc        over rows only, shape C

For dx put g = dy · weight, the gradient that arrives at x̂. From (1), ∂mean/∂x_j = 1/C and
∂rstd/∂x_j = −rstd³ (x_j − mean)/C = −rstd² x̂_j / C, so

     ∂x̂_c/∂x_j = rstd · (δ_cj − 1/C) + (x_c − mean) · (−rstd² x̂_j / C)
               = rstd · (δ_cj − 1/C − x̂_c x̂_j / C)

and summing g_c · ∂x̂_c/∂x_j over c:

(4)  dx = rstd · (g − mean_c(g) − x̂ · mean_c(g · x̂))

weight stands *inside* both means. Σ_c dx_c = 0 follows; nothing constrains dy.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, away_from_zero, given, store

SPEC = Spec(
    name="layernorm",
    shapes={"y": "R C", "mean": "R", "rstd": "R", "x": "R C", "weight": "C", "bias": "C"},
    roles={"mean": "statistic", "rstd": "statistic"},
    meanings={"weight": "norm scale", "bias": "bias"},
    forward=Signature(
        writes={
            "y": "(x − mean)·rstd·weight + bias",
            "mean": "mean_C x",
            "rstd": "1/√(var_C x + eps)",
        },
        reads=("x", "weight", "bias"),
        scalars=("eps",),
    ),
    backward=Signature(
        writes={
            "dx": "rstd·(g − mean_C g − x̂·mean_C(g·x̂)), g = dy·weight",
            "dweight": "Σ_R dy·x̂",
            "dbias": "Σ_R dy",
        },
        reads=("dy", "x", "weight", "mean", "rstd"),
        adds=("dx", "dweight", "dbias"),
        optional=("dx", "dweight", "dbias"),
    ),
    full=("weight", "bias"),
)


def forward(y: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array, eps: float) -> None:
    mean[...] = x.mean(axis=1)  # (1)
    centred = x - mean[:, None]
    rstd[...] = 1 / np.sqrt((centred * centred).mean(axis=1) + eps)
    y[...] = centred * rstd[:, None] * weight + bias  # (2)


def backward(
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    dy: Array,
    x: Array,
    weight: Array,
    mean: Array,
    rstd: Array,
    add: frozenset[str] = NONE,
) -> None:
    xhat = (x - mean[:, None]) * rstd[:, None]
    if dweight is not None:
        store(dweight, (dy * xhat).sum(axis=0), "dweight" in add)  # (3)
    if dbias is not None:
        store(dbias, dy.sum(axis=0), "dbias" in add)
    if dx is not None:
        g = dy * weight
        pull = g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True)
        store(dx, rstd[:, None] * pull, "dx" in add)  # (4)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    if direction == "forward":
        return 8 * dims["R"] * dims["C"]
    asked = 8 * given(writes, "dx") + 2 * given(writes, "dweight") + given(writes, "dbias")
    return (asked + (2 if given(writes, "dx", "dweight") else 0)) * dims["R"] * dims["C"]  # the 2 are x̂


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "x": 2.0 + rng.normal(size=(4, 5)),
        "weight": away_from_zero(rng, 5),
        "bias": away_from_zero(rng, 5),
        "eps": 1e-2,  # large enough that a forgotten eps shows
    }
