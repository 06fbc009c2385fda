"""Stochastic gradient descent: one step against the gradient.

(1)  weights ← weights − lr · scale · gradients

Where the weights have a master copy in a wider type, it is the one that steps, and the weights are its rounding.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="sgd",
    shapes={"weights": "N", "master": "N", "gradients": "N", "scale": "1", "lr": "1"},
    rounded={"weights": "master"},
    roles={"scale": "scalar", "lr": "scalar"},
    forward=Signature(
        writes={"weights": "weights − lr·scale·gradients", "master": "the same, of which weights are the rounding"},
        reads=("gradients", "scale", "lr"),
        updates=("weights", "master"),
        optional=("master",),
    ),
)


def forward(weights: Array, master: Array | None, gradients: Array, scale: Array, lr: Array) -> None:
    full = weights if master is None else master
    full -= lr[0] * (scale[0] * gradients)  # (1)
    if master is not None:
        weights[...] = master


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 3 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "weights": rng.normal(size=9),
        "gradients": rng.normal(size=9),
        "scale": np.array([0.5]),
        "lr": np.array([0.1]),
    }
