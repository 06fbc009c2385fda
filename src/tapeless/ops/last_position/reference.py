"""Last position: where a model answers once per sequence, the head reads the last position alone.

(1)  y[b] = x[b, T−1]
(2)  dx[b, T−1] = dy[b], and dx[b, t] = 0 for every earlier t: the loss does not see them here.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="last_position",
    shapes={"y": "B C", "x": "B T C"},
    forward=Signature(writes={"y": "x[:, T−1]"}, reads=("x",)),
    backward=Signature(writes={"dx": "dy at T−1, 0 before"}, reads=("dy",)),
)


def forward(y: Array, x: Array) -> None:
    y[...] = x[:, -1]  # (1)


def backward(dx: Array, dy: Array) -> None:
    dx[:, :-1] = 0  # (2)
    dx[:, -1] = dy


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 0


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(3, 4, 2))}
