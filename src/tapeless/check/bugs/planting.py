"""What a bug is, and the few ways to plant one: in a formula, in a helper, in a call that a model makes.

Nothing here edits source. A plant replaces an attribute by a wrong version of it and puts the right one back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tapeless.ops import OPS
from tapeless.ops.contract import NONE, store
from tapeless.program.builder import Builder

Plant = Callable[[], AbstractContextManager[None]]
Formula = Callable[[Any], Any]  # from a kernel's arguments, by name, to one of its outputs


@dataclass(frozen=True)
class Bug:
    name: str
    where: str  # what a report must name: the `place` of a finding
    what: str
    seen: str  # what a user would notice
    plant: Plant
    public: str | None = None  # where it has bitten people


def wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """An attribute of a module or class is another for a while, made from the one that is there."""

    @contextmanager
    def plant() -> Iterator[None]:
        right, own = getattr(owner, name), name in vars(owner)
        setattr(owner, name, make(right))
        try:
            yield
        finally:
            if own:
                setattr(owner, name, right)
            else:
                delattr(owner, name)  # it was inherited

    return plant


def replaced(owner: Any, name: str, wrong: Any) -> Plant:
    return wrapped(owner, name, lambda right: wrong)


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Plant:
    """A function that is given the right one first."""
    return wrapped(owner, name, lambda right: lambda *args, **kwargs: wrapper(right, *args, **kwargs))


def helper(op: str, name: str, wrong: Any) -> Plant:
    """Something that forward and backward of an op share: both go wrong, and agree with each other."""
    return replaced(OPS[op], name, wrong)


def forward(op: str, **formulas: Formula) -> Plant:
    return _spoilt(op, "forward", formulas)


def backward(op: str, **formulas: Formula) -> Plant:
    return _spoilt(op, "backward", formulas)


def _spoilt(op: str, direction: str, formulas: dict[str, Formula]) -> Plant:
    """The kernel is right but for these outputs. It still adds where it is told to."""
    signature = OPS[op].SPEC.signature(direction)
    names = (*signature.arguments, *signature.scalars)

    def wrong(right: Any, *args: Any, add: frozenset[str] = NONE) -> None:
        values = SimpleNamespace(**dict(zip(names, args, strict=True)))
        asked = {name: formula for name, formula in formulas.items() if getattr(values, name) is not None}
        results = {name: np.array(formula(values)) for name, formula in asked.items()}
        before = {name: getattr(values, name).copy() for name in asked}
        right(*args, **({"add": add} if add else {}))
        for name, result in results.items():
            out = getattr(values, name)
            out[...] = before[name]
            store(out, result, name in add)

    return around(OPS[op], direction, wrong)


def overwriting(op: str, output: str) -> Plant:
    """= for +=: the backward does not look at whether it should add."""

    def wrong(right: Any, *args: Any, add: frozenset[str] = NONE) -> None:
        right(*args, add=add - {output})

    return around(OPS[op], "backward", wrong)


Values = dict[str, Any]  # what a model hands to a call


def call(title: str, change: Callable[[Values], Values | None], of: str = "") -> Plant:
    """A model makes this call with other arguments, or (None) not at all. `of`: only where the name of the first
    buffer written ends so."""

    def wrong(right: Any, self: Builder, op: str, direction: str, values: Values, stack: tuple[str, ...]) -> None:
        made: Values | None = values
        of_a_model = stack[0].startswith("tapeless/models/")
        if of_a_model and f"{op}.{direction}" == title and _first_written(values).endswith(of):
            made = change(dict(values))
        if made is not None:
            right(self, op, direction, made, stack)

    return around(Builder, "call", wrong)


def _first_written(values: Values) -> str:
    return next((str(value.view.buffer.name) for value in values.values() if hasattr(value, "view")), "")


def together(*plants: Plant) -> Plant:
    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant
