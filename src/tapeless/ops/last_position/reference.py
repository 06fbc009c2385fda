"""Last position: where a model answers once per sequence, only the last position goes on.

(1)  y[b] = x[b, T−1]
(2)  dx[b, T−1] = dy[b], and dx[b, t] = 0 for every earlier t: nothing that follows sees them.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, store

SPEC = Spec(
    name="last_position",
    shapes={"y": "B 1 C", "x": "B T C"},
    forward=Signature(writes={"y": "x[:, T−1]"}, reads=("x",)),
    backward=Signature(writes={"dx": "dy at T−1, 0 before"}, reads=("dy",), adds=("dx",)),
)


def forward(y: Array, x: Array) -> None:
    y[...] = x[:, -1:]  # (1)


def backward(dx: Array, dy: Array, add: frozenset[str] = NONE) -> None:
    if "dx" not in add:
        store(dx, 0, add=False)
    dx[:, -1:] += dy  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 0


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(3, 4, 2))}
