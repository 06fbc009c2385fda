"""The residual stream as a highway: how large each branch is that joins it, and whether it reinforces it or cancels it.

Forward a branch is what a block adds to the stream; backward, what it adds to the stream's gradient. The cosine between
the branch and what was there before it says which way it goes: 1 the same way, 0 across, −1 against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Argument, Call

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
    numbered = [(number, call) for number, call in enumerate(model.program.calls) if call.phase in PHASES]
    following = [call for _, call in numbered[1:]] + [None]
    found, before = [], None
    for (number, call), after, _ in zip(numbered, following, model.engine.walk(*PHASES), strict=True):
        if call.op == "residual" and call.phase == "forward":
            x, branch = (model.engine.read(call[name]) for name in ("x", "branch"))
            found.append(_branch(number, call, "forward", call["branch"].name, x, branch))
        added = _added(call)
        if added is not None and before is not None:
            branch = model.engine.read(added.view).astype(np.float64) - before
            found.append(_branch(number, call, "backward", _source(call), before, branch))
        wanted = None if after is None else _added(after)
        before = None if wanted is None else model.engine.read(wanted.view).astype(np.float64)  # a copy, before the +=
    return found


def _added(call: Call) -> Argument | None:
    """The stream's gradient, where a call adds to it."""
    adds = (each for each in call.writes if each.mode == "add" and each.view.buffer.role == "stream")
    return next(adds, None) if call.phase == "backward" else None


def _source(call: Call) -> str:
    """What comes back through the call: the gradient that it reads."""
    return call["dy"].name if call.has("dy") else call.title


def _branch(number: int, call: Call, direction: str, name: str, highway: Array, branch: Array) -> Branch:
    one, other = (array.astype(np.float64).ravel() for array in (highway, branch))
    sizes = [float(np.sqrt(np.mean(np.square(each)))) for each in (one, other)]
    together = sizes[0] * sizes[1]
    cosine = float(np.mean(one * other)) / together if together > 0 else 0.0
    return Branch(number, direction, call.section, name, sizes[1], sizes[0], cosine)
