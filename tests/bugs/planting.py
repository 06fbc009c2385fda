"""The ways to plant a bug: in a formula, in a helper, in a call that a model makes.

What a bug is, and the planting of a formula, is in the package, with the bugs that the lessons plant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tapeless.check.planted import Bug, Formula, Plant, around, backward, spoilt, wrapped
from tapeless.ops import OPS
from tapeless.ops.contract import NONE
from tapeless.program.builder import Builder

__all__ = [
    "Bug",
    "Plant",
    "Values",
    "around",
    "backward",
    "call",
    "forward",
    "helper",
    "overwriting",
    "replaced",
    "together",
    "wrapped",
]


def replaced(owner: Any, name: str, wrong: Any) -> Plant:
    return wrapped(owner, name, lambda right: wrong)


def helper(op: str, name: str, wrong: Any) -> Plant:
    """Something that forward and backward of an op share: both go wrong, and agree with each other."""
    return replaced(OPS[op], name, wrong)


def forward(op: str, **formulas: Formula) -> Plant:
    return spoilt(op, "forward", formulas)


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
