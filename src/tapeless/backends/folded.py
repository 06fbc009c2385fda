"""ReLU within the products around it, on the CPU, where nothing looks in between: what is computed is what the calls
compute singly, to the last bit, and three passes over the widest matrices of a block are saved.

- relu, linear: the product packs what ReLU leaves of its x.
- relu once more, linear backward, relu backward: so does the product that makes the weight's gradient, and the one that
  makes dx writes 0 where ReLU was shut. Either ReLU may be missing.

What lay between the calls is not written then, so nobody may read it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tapeless.kernels.native import Native
from tapeless.program.call import Call, View


class Fold(NamedTuple):
    """Calls from `first` on: a linear, and the ReLUs before and behind it."""

    first: int
    calls: tuple[Call, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1

    @property
    def linear(self) -> int:
        return next(number for number, call in enumerate(self.calls) if call.op == "linear")


def folds(calls: Sequence[Call]) -> Iterator[Fold]:
    """From the first call to the last, none in two of them."""
    number = 0
    while number < len(calls):
        found = _fold(calls, number)
        if found:
            yield found
        number = found.last + 1 if found else number + 1


def bind(fold: Fold, arrays: Sequence[dict[str, Any]], scratch: Sequence[Any]) -> list[Native]:
    """`arrays`: of each call, by argument."""
    linear, given, more = fold.calls[fold.linear], dict(arrays[fold.linear]), {}
    if fold.linear > 0:
        given["x"], more["relu"] = arrays[0]["x"].reshape(given["x"].shape, copy=False), True
    if fold.linear < len(fold.calls) - 1:
        behind, shape = arrays[-1], given["dx"].shape
        given["dx"], more["mask"] = (behind[name].reshape(shape, copy=False) for name in ("dx", "x"))
    binder = getattr(import_module("tapeless.ops.linear.cpu"), linear.direction)
    added = frozenset(argument.name for argument in linear.writes if argument.mode == "add")
    options = {"add": added} if added else {}
    natives: list[Native] = binder(
        *(given.get(name) for name in linear.signature.arguments), scratch=scratch, **options, **more
    )
    return natives


def _fold(calls: Sequence[Call], number: int) -> Fold | None:
    at = number + (calls[number].title == "relu.forward")
    if at == len(calls) or calls[at].op != "linear" or calls[at].dims["R"] == 1:  # one row is no product
        return None
    linear, last = calls[at], at
    if at > number and (calls[number]["y"] != _view(linear, "x") or _is_read(calls, at + 1, calls[number]["y"])):
        return None
    behind = calls[at + 1] if at + 1 < len(calls) else None
    if linear.direction == "backward" and behind is not None and behind.title == "relu.backward":
        written = [each for each in linear.writes if each.name == "dx" and each.mode == "write"]
        if written and written[0].view == behind["dy"] and not _is_read(calls, at + 2, behind["dy"]):
            last = at + 1
    return Fold(number, tuple(calls[number : last + 1])) if last > number else None


def _is_read(calls: Sequence[Call], since: int, view: View) -> bool:
    """Before it is written again; or by somebody outside."""
    if view.buffer.kind != "workspace" or not view.whole:
        return True
    for call in calls[since:]:
        touched = [argument for argument in call.arguments if argument.view.buffer == view.buffer]
        if touched:
            return any(argument.mode != "write" or not argument.view.whole for argument in touched)
    return False


def _view(call: Call, name: str) -> View | None:
    return next((argument.view for argument in call.arguments if argument.name == name), None)
