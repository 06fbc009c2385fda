"""Clip: how much the whole gradient has to shrink so that its norm does not exceed the limit.

(1)  scale = limit / norm where norm > limit, else 1

One factor for all tensors: the direction of the step is kept. The gradients themselves are left as they are;
the update multiplies by `scale` as it reads them, which saves a pass over memory. A limit of infinity means
no clipping.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="clip",
    shapes={"scale": "1", "norm": "1", "limit": "1"},
    roles={"scale": "scalar", "norm": "scalar", "limit": "scalar"},
    forward=Signature(writes={"scale": "min(1, limit / norm)"}, reads=("norm", "limit")),
)


def forward(scale: Array, norm: Array, limit: Array) -> None:
    scale[0] = limit[0] / norm[0] if norm[0] > limit[0] else 1.0  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 1


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"norm": np.array([2.5]), "limit": np.array([1.0])}
