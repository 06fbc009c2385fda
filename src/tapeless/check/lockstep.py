"""Two backends over the same program, call by call, to find the *first* call that goes wrong.

Before each call the reference is given exactly the numbers that the backend under test is about to read, so a call
is judged by itself: what an earlier call got slightly wrong does not count against a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tapeless.backends.execute import arguments_of, bind, execute
from tapeless.check.tolerances import LOCKSTEP
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Argument, Call


@dataclass(frozen=True)
class Difference:
    """One result of one call: how far it is from the reference, and where most."""

    number: int
    call: Call
    argument: str
    error: float  # relative to the result's largest element
    tolerance: float
    position: tuple[int, ...]
    found: float
    true: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN too

    def __str__(self) -> str:
        name = self.call[self.argument].name
        return (
            f"call {self.number}, {self.call.title} at {self.call.source}: {self.argument} ({name}) "
            f"is {self.found!r} at {self.position}, the reference says {self.true!r} "
            f"(relative error {self.error:.1e}, allowed {self.tolerance:.1e})"
        )


def lockstep(model: Model, reference: Model, inputs: Any, targets: Any, lr: float = 1e-3) -> Iterator[Difference]:
    """Every result of one whole step of `model`, beside the reference. The first not ok is where it broke."""
    for each in (model, reference):
        each.feed(inputs, targets)
        each.prepare_update(lr, clip=1.0)
    mine = bind(model.program.calls, model.arena, model.backend_module)
    theirs = bind(reference.program.calls, reference.arena, reference.backend_module)
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        call, twin = one[0], other[0]
        arrays, true = arguments_of(call, model.arena), arguments_of(twin, reference.arena)
        for argument in call.reads:
            true[argument.name][...] = arrays[argument.name]
        for _ in execute([one, other]):
            pass
        for argument in call.writes:
            if argument.name != "logits":  # scratch: each backend may leave there what it likes
                yield _compare(number, call, argument, arrays[argument.name], true[argument.name], model.dtype)


def _compare(number: int, call: Call, argument: Argument, found: Array, true: Array, dtype: str) -> Difference:
    difference = np.abs(found.astype(np.float64) - true)
    scale = float(np.abs(true).max())
    where = np.unravel_index(int(np.argmax(np.where(np.isnan(difference), np.inf, difference))), found.shape)
    worst = float(difference[where])
    return Difference(
        number,
        call,
        argument.name,
        worst / scale if scale else worst,
        LOCKSTEP[dtype] * sqrt(reduction_length(call, argument.name)),
        tuple(int(i) for i in where),
        float(found[where]),
        float(true[where]),
    )


def reduction_length(call: Call, result: str) -> int:
    """How many numbers go into one of the result: the longest axis that is read but not in the result."""
    kept = set(call.spec.letters(result))
    summed = {
        letter
        for argument in call.arguments
        if argument.mode == "read"
        for letter in call.spec.letters(argument.name)
        if letter not in kept and not letter.isdigit()
    }
    return max(
        (call.dims[letter] for letter in summed or kept if letter in call.dims and letter != "N"), default=1
    )
