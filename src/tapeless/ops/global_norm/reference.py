"""Global norm: the length of the whole gradient, all tensors taken as one vector, and of each section of it.

(1)  norm = √(Σ_n gradients[n]²)
(2)  norms[l] = √(Σ gradients[n]²) over the n of section l: from sections[l] to where the next begins

Summed in float64 whatever the model's own type.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec
from tapeless.ops.update import norms_by_section, refuse_sections

SPEC = Spec(
    name="global_norm",
    shapes={"norm": "1", "norms": "L", "gradients": "N"},
    roles={"norm": "scalar", "norms": "scalar"},
    meanings={"norm": "gradient norm", "norms": "gradient norms"},
    forward=Signature(
        writes={"norm": "√(Σ gradients²)", "norms": "√(Σ gradients²) by section"},
        reads=("gradients",),
        scalars=("sections",),
    ),
    refuse=refuse_sections,
)


def forward(norm: Array, norms: Array, gradients: Array, sections: tuple[int, ...]) -> None:
    size = np.abs(gradients).astype(np.float64)
    norm[...] = np.sqrt(size @ size)  # (1)
    norms[...] = norms_by_section(gradients, sections)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 2 * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"norms": (3,), "gradients": rng.normal(size=9), "sections": (0, 2, 6)}
