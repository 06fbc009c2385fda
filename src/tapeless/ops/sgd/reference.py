"""Stochastic gradient descent: one step against the gradient.

(1)  weights ← weights − lr · scale · gradients
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="sgd",
    shapes={"weights": "N", "gradients": "N", "scale": "1", "lr": "1"},
    roles={"scale": "scalar", "lr": "scalar"},
    forward=Signature(
        writes={"weights": "weights − lr·scale·gradients"},
        reads=("gradients", "scale", "lr"),
        updates=("weights",),
    ),
)


def forward(weights: Array, gradients: Array, scale: Array, lr: Array) -> None:
    weights -= lr[0] * (scale[0] * gradients)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 3 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "weights": rng.normal(size=9),
        "gradients": rng.normal(size=9),
        "scale": np.array([0.5]),
        "lr": np.array([0.1]),
    }
