"""What the optimizers' ops have in common: all but the formulas of the weights and of their moments.

Where the weights have a master copy in a wider type, it is the one that steps, and the weights are its rounding. Where
`finite` is 0 nothing is changed. An update also says how far it moved each section of the model and how large the
section was before; `sections` says where each begins.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SHAPES = {"step": "1", "moved": "L", "norms": "L", "gradients": "N", "scale": "1", "finite": "1", "lr": "1"}
ROLES = dict.fromkeys(("step", "finite"), "index") | dict.fromkeys(("moved", "norms", "scale", "lr"), "scalar")
READS = ("gradients", "scale", "finite", "lr")
MEANINGS = {
    "step": "optimizer steps",
    "moved": "lengths of the step",
    "norms": "norms of weights",
    "scale": "gradient scale",
    "finite": "finite flag",
    "lr": "learning rate",
    "m": "first moment",
    "v": "second moment",
    **{name: name for name in ("momentum", "beta1", "beta2", "eps", "decay")},
}


def refuse_sections(dims: Dims, scalars: Scalars) -> str | None:
    starts = scalars["sections"]
    rising = all(a < b for a, b in pairwise((*starts, dims["N"])))
    if starts[:1] == (0,) and rising and len(starts) == dims["L"]:
        return None
    return f"sections must begin at 0, rise, and be {dims['L']} in {dims['N']} elements, not {starts}"


def update_spec(
    name: str,
    formulas: Mapping[str, str],
    moved: str,
    scalars: tuple[str, ...] = (),
    second_moments: str = "N",
    refuse: Callable[[Dims, Scalars], str | None] = refuse_sections,
) -> Spec:
    """Return the Spec of an update. `formulas`: of the weights and of the moments that it keeps; `moved`: of what is
    taken from an element. `second_moments`: how many there are."""
    copies = {"master": "the same as weights, which are its rounding", "step": "step + finite"}
    norms = {"moved": f"√(Σ {moved}²) by section", "norms": "√(Σ weights²) by section, before"}
    moments = {each: second_moments if each == "v" else "N" for each in formulas}
    return Spec(
        name=name,
        shapes={**moments, "master": "N", **SHAPES},
        rounded={"weights": "master"},
        roles=ROLES,
        meanings=MEANINGS,
        forward=Signature(
            writes={**formulas, **copies, **norms},
            reads=READS,
            scalars=(*scalars, "sections"),
            updates=(*formulas, *copies),
            optional=("master",),
        ),
        refuse=refuse,
    )


def update_example(
    rng: np.random.Generator, moments: Mapping[str, int], size: int = 9, **scalars: Any
) -> dict[str, Any]:
    """Return an example of an update of so many weights, with so many of each moment."""
    sections = scalars.pop("sections", (0, 2, 6))
    return {
        "weights": rng.normal(size=size),
        **{name: rng.uniform(0.1, 1, many) if name == "v" else rng.normal(size=many) for name, many in moments.items()},
        "step": np.array([2]),
        "moved": (3,),
        "norms": (3,),
        "gradients": rng.normal(size=size),
        "scale": np.array([0.5]),
        "finite": np.array([1]),
        "lr": np.array([0.1]),
        **scalars,
        "sections": sections,
    }


def norms_by_section(values: Array, sections: tuple[int, ...]) -> list[float]:
    """Return the norm of each section of a region, in float64."""
    size = np.abs(values).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is for others to tell of
        return [sqrt(part @ part) for part in np.split(size, sections[1:])]
