"""GELU in its tanh form, the one GPT-2 was trained with (not the erf form: they differ by up to 5e-4).

(1)  u = √(2/π) · (x + 0.044715 x³),   y = ½ x (1 + tanh u)

With t = tanh u, dt/du = 1 − t², du/dx = √(2/π) · (1 + 3 · 0.044715 x²):

(2)  dx = dy · (½ (1 + t) + ½ x (1 − t²) · √(2/π) · (1 + 3 · 0.044715 x²))

x is saved, t is recomputed: one array instead of two.
"""

from math import pi, sqrt
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="gelu",
    shapes={"y": "R F", "x": "R F"},
    forward=Signature(writes={"y": "½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))"}, reads=("x",)),
    backward=Signature(writes={"dx": "dy·gelu′(x)"}, reads=("dy", "x")),
)

SCALE = sqrt(2 / pi)
CUBIC = 0.044715


def forward(y: Array, x: Array) -> None:
    y[...] = 0.5 * x * (1 + np.tanh(SCALE * (x + CUBIC * x * x * x)))  # (1)


def backward(dx: Array, dy: Array, x: Array) -> None:
    t = np.tanh(SCALE * (x + CUBIC * x * x * x))
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SCALE * (1 + 3 * CUBIC * x * x)
    dx[...] = dy * slope  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return (9 if direction == "forward" else 18) * dims["R"] * dims["F"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": 1.5 * rng.normal(size=(4, 5))}
