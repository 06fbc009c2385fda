"""tanh, the activation of the CLLM feed-forward.

(1)  y = tanh x
(2)  dx = dy · (1 − tanh² x)
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="tanh",
    shapes={"y": "R F", "x": "R F"},
    forward=Signature(writes={"y": "tanh x"}, reads=("x",)),
    backward=Signature(writes={"dx": "dy·(1 − tanh²x)"}, reads=("dy", "x")),
)


def forward(y: Array, x: Array) -> None:
    y[...] = np.tanh(x)  # (1)


def backward(dx: Array, dy: Array, x: Array) -> None:
    t = np.tanh(x)
    dx[...] = dy * (1 - t * t)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return (1 if direction == "forward" else 4) * dims["R"] * dims["F"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(4, 5))}
