"""Stochastic gradient descent: one step against the gradient.

(1)  weights ← weights − lr · scale · gradients
(2)  step ← step + 1

Where the weights have a master copy in a wider type, it is the one that steps, and the weights are its rounding.
Where `finite` is 0 none of this is done. On the way it is told how far each section of the model was moved, and how
large it was before:

(3)  moved[l] = √(Σ (lr · scale · gradients)²),   norms[l] = √(Σ weights²)   over section l
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars
from tapeless.ops.update import norms_by_section, update_example, update_spec

SPEC = update_spec("sgd", {"weights": "weights − lr·scale·gradients"}, "(lr·scale·gradients)")


def forward(
    weights: Array,
    master: Array | None,
    step: Array,
    moved: Array,
    norms: Array,
    gradients: Array,
    scale: Array,
    finite: Array,
    lr: Array,
    sections: tuple[int, ...],
) -> None:
    full = weights if master is None else master
    norms[...] = norms_by_section(full, sections)  # (3)
    moved[...] = 0
    if finite[0]:
        change = lr[0] * (scale[0] * gradients)
        moved[...] = norms_by_section(change, sections)
        full -= change  # (1)
        step += 1  # (2)
        if master is not None:
            weights[...] = master


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 7 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return update_example(rng, {})
