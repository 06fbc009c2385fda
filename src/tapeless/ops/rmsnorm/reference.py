"""RMSNorm: every stretch of D channels brought to mean square 1, then scaled by channel. Nothing is taken off.

A row is H stretches side by side: one, where a whole row is normed, or one a head, all with the same weight.

(1)  rstd = 1 / √((1/D) Σ_d x_d² + ε)
(2)  x̂ = x · rstd,   y = x̂ · weight

weight reaches its own channel in every stretch of every row:

(3)  dweight_d = Σ_r Σ_h dy_rhd · x̂_rhd                       shape D

For dx put g = dy · weight, the gradient that arrives at x̂. From (1), ∂rstd/∂x_j = −rstd³ x_j / D = −rstd² x̂_j / D, so

     ∂x̂_d/∂x_j = rstd · δ_dj + x_d · (−rstd² x̂_j / D) = rstd · (δ_dj − x̂_d x̂_j / D)

and summing g_d · ∂x̂_d/∂x_j over d:

(4)  dx = rstd · (g − x̂ · mean_d(g · x̂))

It is LayerNorm's without the means: weight stands *inside* the mean, and ε keeps Σ_d x_d dx_d from being 0.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, away_from_zero, given, store

SPEC = Spec(
    name="rmsnorm",
    shapes={"y": "R C", "rstd": "R H", "x": "R C", "weight": "D"},
    roles={"rstd": "statistic"},
    meanings={"weight": "norm scale"},
    forward=Signature(
        writes={"y": "x·rstd·weight", "rstd": "1/√(mean_D x² + eps)"},
        reads=("x", "weight"),
        scalars=("eps",),
    ),
    backward=Signature(
        writes={"dx": "rstd·(g − x̂·mean_D(g·x̂)), g = dy·weight", "dweight": "Σ_RH dy·x̂"},
        reads=("dy", "x", "weight", "rstd"),
        adds=("dx", "dweight"),
        optional=("dx", "dweight"),
    ),
    refuse=lambda dims, scalars: (
        f"C={dims['C']} channels are not H={dims['H']} stretches of D={dims['D']}"
        if dims["C"] != dims["H"] * dims["D"]
        else None
    ),
    full=("weight",),
)


def _stretches(x: Array, rstd: Array) -> Array:
    """R C → R H D"""
    return x.reshape(*rstd.shape, -1)


def forward(y: Array, rstd: Array, x: Array, weight: Array, eps: float) -> None:
    split = _stretches(x, rstd)
    rstd[...] = 1 / np.sqrt((split * split).mean(axis=2) + eps)  # (1)
    y[...] = (split * rstd[..., None] * weight).reshape(x.shape)  # (2)


def backward(
    dx: Array | None,
    dweight: Array | None,
    dy: Array,
    x: Array,
    weight: Array,
    rstd: Array,
    add: frozenset[str] = NONE,
) -> None:
    dy = _stretches(dy, rstd)
    xhat = _stretches(x, rstd) * rstd[..., None]
    if dweight is not None:
        store(dweight, (dy * xhat).sum(axis=(0, 1)), "dweight" in add)  # (3)
    if dx is not None:
        g = dy * weight
        pull = g - xhat * (g * xhat).mean(axis=2, keepdims=True)
        store(dx, (rstd[..., None] * pull).reshape(x.shape), "dx" in add)  # (4)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    if direction == "forward":
        return 4 * dims["R"] * dims["C"]
    return (6 * given(writes, "dx") + 2 * given(writes, "dweight") + 1) * dims["R"] * dims["C"]  # the 1 is x̂


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "x": 0.5 + rng.normal(size=(4, 6)),
        "weight": away_from_zero(rng, 3),
        "rstd": (4, 2),
        "eps": 1e-2,  # large enough that a forgotten eps shows
    }
