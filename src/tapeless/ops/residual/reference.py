"""Residual: what a branch computed is added to the stream it was computed from.

(1)  y = x + branch

Both derivatives are 1: dx = dy and dbranch = dy. There is nothing to compute and nothing to copy: in the
backward pass one buffer, the stream's gradient, is at once dy, dbranch and the dx that the branch's own
backward calls add to. So this op has no backward call.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="residual",
    shapes={"y": "R C", "x": "R C", "branch": "R C"},
    forward=Signature(writes={"y": "x + branch"}, reads=("x", "branch")),
    passes={"x": "y", "branch": "y"},
)


def forward(y: Array, x: Array, branch: Array) -> None:
    np.add(x, branch, out=y)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["R"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(4, 3)), "branch": rng.normal(size=(4, 3))}
