"""AdamW: each weight steps by its gradient's running mean over its running size. Adam is decay = 0.

With g = scale · gradients and the step number counting from 1:

(1)  m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²

m and v start at 0 and are too small by the factors 1 − β₁^step and 1 − β₂^step; dividing them out:

(2)  weights ← weights − lr · (m / (1 − β₁^step)) / (√(v / (1 − β₂^step)) + eps)

Decay shrinks the weights directly, not through the gradient, and before (2):

(3)  weights ← weights − lr · decay · weights        on the spans `decayed` only

`decayed` names the matrices. Norms, biases and positions are never decayed: pulling them to zero does not
make a simpler model, only a worse one.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="adamw",
    shapes={
        "weights": "N",
        "m": "N",
        "v": "N",
        "gradients": "N",
        "scale": "1",
        "lr": "1",
        "step": "1",
    },
    roles={"scale": "scalar", "lr": "scalar", "step": "index"},
    forward=Signature(
        writes={
            "weights": "weights·(1 − lr·decay) − lr·m̂ / (√v̂ + eps)",
            "m": "β₁·m + (1 − β₁)·scale·gradients",
            "v": "β₂·v + (1 − β₂)·(scale·gradients)²",
        },
        reads=("gradients", "scale", "lr", "step"),
        scalars=("beta1", "beta2", "eps", "decay", "decayed"),
        updates=("weights", "m", "v"),
    ),
)


def forward(
    weights: Array,
    m: Array,
    v: Array,
    gradients: Array,
    scale: Array,
    lr: Array,
    step: Array,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decayed: tuple[tuple[int, int], ...],
) -> None:
    for start, stop in decayed:
        weights[start:stop] *= 1 - lr[0] * decay  # (3)
    g = scale[0] * gradients
    m += (1 - beta1) * (g - m)  # (1)
    v *= beta2
    v += (1 - beta2) * g * g
    correction = 1 - beta1 ** int(step[0])
    size = np.sqrt(v) / np.sqrt(1 - beta2 ** int(step[0])) + eps
    weights -= lr[0] / correction * m / size  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 14 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "weights": rng.normal(size=9),
        "m": rng.normal(size=9),
        "v": rng.uniform(0.1, 1, size=9),
        "gradients": rng.normal(size=9),
        "scale": np.array([0.5]),
        "lr": np.array([0.1]),
        "step": np.array([3]),
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "decay": 0.1,
        "decayed": ((2, 5),),
    }
