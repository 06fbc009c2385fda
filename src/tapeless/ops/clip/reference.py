"""Clip: how much the whole gradient has to shrink so that its norm does not exceed the limit, and whether the step may
be taken at all.

(1)  scale = limit / norm where norm > limit, else 1
(2)  finite = 1 where the loss is finite and norm · scale < largest, else 0

One factor for all tensors: the direction of the step is kept. The gradients themselves are left as they are;
the update multiplies by `scale` as it reads them, which saves a pass over memory. A limit of infinity means
no clipping. `largest` is what an optimizer can still square in the model's own type; a norm that is NaN or infinite is
not below it. Where `finite` is 0 the update changes nothing, so nobody has to look in the middle of a step.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="clip",
    shapes={"scale": "1", "finite": "1", "loss": "1", "norm": "1", "limit": "1", "largest": "1"},
    roles={
        "loss": "statistic",
        "finite": "index",
        **dict.fromkeys(("scale", "norm", "limit", "largest"), "scalar"),
    },
    meanings={
        "scale": "gradient scale",
        "finite": "finite flag",
        "norm": "gradient norm",
        "limit": "clip limit",
        "largest": "largest number",
    },
    forward=Signature(
        writes={"scale": "min(1, limit / norm)", "finite": "loss is finite and norm·scale < largest"},
        reads=("loss", "norm", "limit", "largest"),
    ),
)


def forward(scale: Array, finite: Array, loss: Array, norm: Array, limit: Array, largest: Array) -> None:
    scale[0] = limit[0] / norm[0] if norm[0] > limit[0] else 1.0  # (1)
    finite[0] = bool(np.isfinite(loss[0])) and norm.item() * scale.item() < largest.item()  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 2


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "loss": np.array([1.5]),
        "norm": np.array([2.5]),
        "limit": np.array([1.0]),
        "largest": np.array([1e19]),
    }
