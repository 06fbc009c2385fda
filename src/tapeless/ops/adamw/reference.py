"""AdamW: each weight steps by its gradient's running mean over its running size. Adam is decay = 0.

With g = scale · gradients:

(1)  step ← step + 1,   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²

m and v start at 0 and are too small by the factors 1 − β₁^step and 1 − β₂^step; dividing them out:

(2)  weights ← weights − lr · (m / (1 − β₁^step)) / (√(v / (1 − β₂^step)) + eps)

Decay shrinks the weights directly, not through the gradient, and before (2):

(3)  weights ← weights − lr · decay · weights        on the spans `decayed` only

Where the weights have a master copy in a wider type, it is the one that steps, and the weights are its rounding.

`decayed` names the matrices. Norms, biases and positions are never decayed: pulling them to zero does not
make a simpler model, only a worse one. Where `finite` is 0 nothing is changed. On the way it is told how far each
section of the model was moved, by what (2) and (3) take away together, and how large it was before:

(4)  moved[l] = √(Σ change²),   norms[l] = √(Σ weights²)   over section l
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars
from tapeless.ops.update import norms_by_section, update_example, update_spec

SPEC = update_spec(
    "adamw",
    {
        "weights": "weights·(1 − lr·decay) − lr·m̂ / (√v̂ + eps)",
        "m": "β₁·m + (1 − β₁)·scale·gradients",
        "v": "β₂·v + (1 − β₂)·(scale·gradients)²",
    },
    "(lr·decay·weights + lr·m̂ / (√v̂ + eps))",
    scalars=("beta1", "beta2", "eps", "decay", "decayed"),
)


def forward(
    weights: Array,
    m: Array,
    v: Array,
    master: Array | None,
    step: Array,
    moved: Array,
    norms: Array,
    gradients: Array,
    scale: Array,
    finite: Array,
    lr: Array,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decayed: tuple[tuple[int, int], ...],
    sections: tuple[int, ...],
) -> None:
    full = weights if master is None else master
    norms[...] = norms_by_section(full, sections)  # (4)
    moved[...] = 0
    if not finite[0]:
        return
    step += 1
    change = np.zeros_like(full)
    for start, stop in decayed:
        change[start:stop] = lr[0] * decay * full[start:stop]
        full[start:stop] *= 1 - lr[0] * decay  # (3)
    away = adam(m, v, scale[0] * gradients, step, lr, beta1, beta2, eps)
    full -= away  # (2)
    moved[...] = norms_by_section(change + away, sections)
    if master is not None:
        weights[...] = master


def adam(m: Array, v: Array, g: Array, step: Array, lr: Array, beta1: float, beta2: float, eps: float) -> Array:
    """What (2) takes away."""
    m += (1 - beta1) * (g - m)  # (1)
    v *= beta2
    v += (1 - beta2) * g * g
    correction = 1 - beta1 ** int(step[0])
    size = np.sqrt(v) / np.sqrt(1 - beta2 ** int(step[0])) + eps
    away: Array = lr[0] / correction * m / size
    return away


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 20 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return update_example(rng, {"m": 9, "v": 9}, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.1, decayed=((2, 5),))
