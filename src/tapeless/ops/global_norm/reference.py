"""Global norm: the length of the whole gradient, all tensors taken as one vector.

(1)  norm = √(Σ_n gradients[n]²)

Summed in float64 whatever the model's own type.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="global_norm",
    shapes={"norm": "1", "gradients": "N"},
    roles={"norm": "scalar"},
    forward=Signature(writes={"norm": "√(Σ gradients²)"}, reads=("gradients",)),
)


def forward(norm: Array, gradients: Array) -> None:
    size = np.abs(gradients).astype(np.float64)
    norm[...] = np.sqrt(size @ size)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 2 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"gradients": rng.normal(size=9)}
