"""Momentum: steps along a running sum of gradients, so that what they agree on builds up.

(1)  m ← momentum · m + scale · gradients
(2)  weights ← weights − lr · m,   step ← step + 1

Where the weights have a master copy in a wider type, it is the one that steps, and the weights are its rounding.
Where `finite` is 0 none of this is done. On the way it is told how far each section of the model was moved, and how
large it was before:

(3)  moved[l] = √(Σ (lr · m)²),   norms[l] = √(Σ weights²)   over section l
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars
from tapeless.ops.update import norms_by_section, update_example, update_spec

SPEC = update_spec(
    "momentum",
    {"weights": "weights − lr·m", "m": "momentum·m + scale·gradients"},
    "(lr·m)",
    scalars=("momentum",),
)


def forward(
    weights: Array,
    m: Array,
    master: Array | None,
    step: Array,
    moved: Array,
    norms: Array,
    gradients: Array,
    scale: Array,
    finite: Array,
    lr: Array,
    momentum: float,
    sections: tuple[int, ...],
) -> None:
    full = weights if master is None else master
    norms[...] = norms_by_section(full, sections)  # (3)
    moved[...] = 0
    if finite[0]:
        m *= momentum  # (1)
        m += scale[0] * gradients
        change = lr[0] * m
        moved[...] = norms_by_section(change, sections)
        full -= change  # (2)
        step += 1
        if master is not None:
            weights[...] = master


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 9 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return update_example(rng, {"m": 9}, momentum=0.9)
