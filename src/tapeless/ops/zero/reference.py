"""Zero: one fill over all gradients, so that every later call can add to them.

(1)  y = 0
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(name="zero", shapes={"y": "N"}, forward=Signature(writes={"y": "0"}))


def forward(y: Array) -> None:
    y[...] = 0  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 0


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"y": (7,)}
