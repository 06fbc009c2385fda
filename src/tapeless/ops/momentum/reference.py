"""Momentum: steps along a running sum of gradients, so that what they agree on builds up.

(1)  m ← momentum · m + scale · gradients
(2)  weights ← weights − lr · m
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="momentum",
    shapes={"weights": "N", "m": "N", "gradients": "N", "scale": "1", "lr": "1"},
    roles={"scale": "scalar", "lr": "scalar"},
    forward=Signature(
        writes={"weights": "weights − lr·m", "m": "momentum·m + scale·gradients"},
        reads=("gradients", "scale", "lr"),
        scalars=("momentum",),
        updates=("weights", "m"),
    ),
)


def forward(weights: Array, m: Array, gradients: Array, scale: Array, lr: Array, momentum: float) -> None:
    m *= momentum  # (1)
    m += scale[0] * gradients
    weights -= lr[0] * m  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 5 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "weights": rng.normal(size=9),
        "m": rng.normal(size=9),
        "gradients": rng.normal(size=9),
        "scale": np.array([0.5]),
        "lr": np.array([0.1]),
        "momentum": 0.9,
    }
