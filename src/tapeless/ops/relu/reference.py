"""ReLU: what is positive passes, the rest is 0.

(1)  y = x where x > 0, else 0
(2)  dx = dy where x > 0, else 0

At x = 0 there is no derivative; like everyone we take 0 there, and gradients are checked away from it.
A unit whose x is never positive gets no gradient at all and stays dead. Residual connections and LayerNorm
do not prevent that.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec, away_from_zero

SPEC = Spec(
    name="relu",
    shapes={"y": "R F", "x": "R F"},
    forward=Signature(writes={"y": "max(x, 0)"}, reads=("x",)),
    backward=Signature(writes={"dx": "dy where x > 0, else 0"}, reads=("dy", "x")),
)


def forward(y: Array, x: Array) -> None:
    y[...] = np.where(x.real <= 0, 0, x)  # (1); NaN is not ≤ 0 and passes, so that it is noticed


def backward(dx: Array, dy: Array, x: Array) -> None:
    dx[...] = np.where(x.real <= 0, 0, dy)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["R"] * dims["F"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": away_from_zero(rng, 4, 5)}
