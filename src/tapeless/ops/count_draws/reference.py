"""Count draws: a model that learns from another batch draws other random numbers.

(1)  draws ← draws + 1

It stands before the first call that draws any. The count lies beside the optimizer's state, so that a resumed run goes
on counting, and batches whose gradients are added up each draw their own. Forward only.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="count_draws",
    shapes={"draws": "1"},
    roles={"draws": "index"},
    meanings={"draws": "random counter"},
    forward=Signature(writes={"draws": "draws + 1"}, updates=("draws",)),
)


def forward(draws: Array) -> None:
    draws += 1  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 1


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"draws": np.array([4])}
