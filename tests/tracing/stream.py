"""The residual stream as a highway: how large each branch is that joins it, and whether it reinforces it or cancels it.

What joins where, and what is measured of it, is `train.history.measuring`; here a step of any model is walked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.train.history.measuring import MEASURED, Joining, added, compare, joinings

PHASES = ("zero", "forward", "recompute", "backward")


@dataclass(frozen=True)
class Branch:
    """One addition to the stream. Sizes are root mean squares over all elements."""

    call: int
    direction: str  # "forward", or "backward" where it is the gradient that is added to
    section: str
    name: str  # of what is added
    size: float
    highway: float  # the size of what was there before
    cosine: float


def branches(model: Model, inputs: Any, targets: Any, *, count: float | None = None) -> list[Branch]:
    """Every addition to the residual stream in a step, in the order of its calls. The model's gradients are those of
    the batch afterwards."""
    model.feed(inputs, targets, count)
    joined = {each.call: each for each in joinings(model.program)}
    numbered = [(number, call) for number, call in enumerate(model.program.calls) if call.phase in PHASES]
    following = [call for _, call in numbered[1:]] + [None]
    found, before = [], None
    for (number, call), after, _ in zip(numbered, following, model.engine.walk(*PHASES), strict=True):
        here, target = joined.get(number), added(call)
        if here is not None and target is None:
            found.append(_branch(here, call, *(model.engine.read(call[name]) for name in ("x", "branch"))))
        elif here is not None and target is not None and before is not None:
            branch = model.engine.read(target.view).astype(np.float64) - before
            found.append(_branch(here, call, before, branch))
        wanted = None if after is None else added(after)
        before = None if wanted is None else model.engine.read(wanted.view).astype(np.float64)  # a copy, before the +=
    return found


def _branch(joining: Joining, call: Call, highway: Array, branch: Array) -> Branch:
    measured = np.empty(len(MEASURED))
    compare(measured, highway, branch)
    size, there, cosine = measured.tolist()
    return Branch(joining.call, joining.direction, call.section, joining.name, size, there, cosine)
