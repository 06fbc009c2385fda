"""Stochastic gradient descent: one step against the gradient.

(1)  weights ← weights − lr · scale · gradients
(2)  step ← step + 1

Where `finite` is 0 none of this is done. On the way it is told how far each section of the model was moved, and how
large it was before:

(3)  moved[l] = √(Σ (lr · scale · gradients)²),   norms[l] = √(Σ weights²)   over section l
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec, norms_by_section, refuse_sections

SPEC = Spec(
    name="sgd",
    shapes={
        "weights": "N",
        "step": "1",
        "moved": "L",
        "norms": "L",
        "gradients": "N",
        "scale": "1",
        "finite": "1",
        "lr": "1",
    },
    roles={
        **dict.fromkeys(("step", "finite"), "index"),
        **dict.fromkeys(("moved", "norms", "scale", "lr"), "scalar"),
    },
    forward=Signature(
        writes={
            "weights": "weights − lr·scale·gradients",
            "step": "step + finite",
            "moved": "√(Σ (lr·scale·gradients)²) by section",
            "norms": "√(Σ weights²) by section, before",
        },
        reads=("gradients", "scale", "finite", "lr"),
        scalars=("sections",),
        updates=("weights", "step"),
    ),
    refuse=refuse_sections,
)


def forward(
    weights: Array,
    step: Array,
    moved: Array,
    norms: Array,
    gradients: Array,
    scale: Array,
    finite: Array,
    lr: Array,
    sections: tuple[int, ...],
) -> None:
    norms[...] = norms_by_section(weights, sections)  # (3)
    moved[...] = 0
    if finite[0]:
        change = lr[0] * (scale[0] * gradients)
        moved[...] = norms_by_section(change, sections)
        weights -= change  # (1)
        step += 1  # (2)


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
