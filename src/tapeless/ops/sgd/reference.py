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

from tapeless.ops.contract import (
    UPDATE_MEANINGS,
    UPDATE_READS,
    UPDATE_ROLES,
    UPDATE_SHAPES,
    Array,
    Dims,
    Scalars,
    Signature,
    Spec,
    norms_by_section,
    refuse_sections,
)

SPEC = Spec(
    name="sgd",
    shapes={"weights": "N", "master": "N", **UPDATE_SHAPES},
    rounded={"weights": "master"},
    roles=UPDATE_ROLES,
    meanings=UPDATE_MEANINGS,
    forward=Signature(
        writes={
            "weights": "weights − lr·scale·gradients",
            "master": "the same as weights, which are its rounding",
            "step": "step + finite",
            "moved": "√(Σ (lr·scale·gradients)²) by section",
            "norms": "√(Σ weights²) by section, before",
        },
        reads=UPDATE_READS,
        scalars=("sections",),
        updates=("weights", "master", "step"),
        optional=("master",),
    ),
    refuse=refuse_sections,
)


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
    return {
        "weights": rng.normal(size=9),
        "step": np.array([2]),
        "moved": (3,),
        "norms": (3,),
        "gradients": rng.normal(size=9),
        "scale": np.array([0.5]),
        "finite": np.array([1]),
        "lr": np.array([0.1]),
        "sections": (0, 2, 6),
    }
