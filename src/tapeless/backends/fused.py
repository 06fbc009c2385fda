"""Consecutive calls that the device binds as one where nothing looks in between: what they compute is what they compute
singly, and less is carried to memory and back.

- residual, layernorm: the sum is normed while it is at hand.
- layernorm backward, …, linear backward: the gradient of the stream is summed by column and rounded, as the linear
  wants it, while it is at hand. Between the two may stand what is computed again for the linear.
- linear backward, gelu backward, linear backward: one pass makes the gradient before the GELU, its column sums, which
  are the upper bias's gradient, and the activation once more, which the lower weights' gradient reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.program.call import Call, View

AGAIN = ("layernorm.forward", "gelu.forward")  # what may be computed again between a norm's backward and a linear's


class Group(NamedTuple):
    """Calls from `first` on, by what they are to each other."""

    first: int
    calls: tuple[Call, ...]
    linear: int = 0  # where among them the linear stands that a norm's backward prepares; 0: a residual and its norm
    gelu: bool = False  # whether a GELU's backward and another linear's follow it

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1


def groups(calls: Sequence[Call]) -> Iterator[Group]:
    """From the first call to the last, none in two of them."""
    number = 0
    while number < len(calls):
        found = _summed_and_normed(calls, number) or _back(calls, number)
        if found:
            yield found
        number = found.last + 1 if found else number + 1


def bind(group: Group, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """`arrays`: of each call, by argument."""
    if group.linear:
        return _bind_back(group, arrays)
    (_, summed), (norm, normed) = zip(group.calls, arrays, strict=True)
    return _bound(norm, normed | {"x": summed["x"]}, total=summed["y"], branch=summed["branch"])


def _summed_and_normed(calls: Sequence[Call], number: int) -> Group | None:
    pair = tuple(calls[number : number + 2])
    titles = tuple(call.title for call in pair)
    if titles == ("residual.forward", "layernorm.forward") and pair[0]["y"] == pair[1]["x"]:
        return Group(number, pair)
    return None


def _back(calls: Sequence[Call], number: int) -> Group | None:
    """A norm's backward, what is computed again, and the backward of the linear that reads the norm's dx."""
    above = calls[number]
    if above.title != "layernorm.backward" or _view(above, "dx") is None:
        return None
    at = number + 1
    while at < len(calls) and calls[at].title in AGAIN:
        at += 1
    if at == len(calls) or calls[at].title != "linear.backward" or calls[at]["dy"] != above["dx"]:
        return None
    linear = at - number
    following = tuple(calls[at + 1 : at + 3])
    gelu = tuple(call.title for call in following) == ("gelu.backward", "linear.backward")
    gelu = gelu and following[0]["dy"] == _view(calls[at], "dx") and following[1]["dy"] == following[0]["dx"]
    return Group(number, tuple(calls[number : at + (3 if gelu else 1)]), linear, gelu)


def _bind_back(group: Group, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """The order of the list, but for the lower weights' gradient, which waits for the activation."""
    calls = group.calls
    linear, given = calls[group.linear], arrays[group.linear]
    dy = given["dy"]
    copy = scratch(dy, *dy.shape, dtype=given["weight"].dtype) if dy.dtype != given["weight"].dtype else None
    sums = {"dbelow": given.get("dbias"), "also": {"dbelow"} if _adds(linear, "dbias") else set()}
    runs = _bound(calls[0], arrays[0], copy=copy, **sums)
    given = given | {"dy": dy if copy is None else copy, "dbias": None}
    made_later = None  # the activation, where the pass over the gradient before it makes it
    for call, own in zip(calls[1 : group.linear], arrays[1:], strict=False):
        if group.gelu and call["y"] == _view(linear, "x") and call["x"] == calls[group.linear + 1]["x"]:
            made_later = own["y"]
        else:
            runs += _bound(call, own)
    if not group.gelu:
        return [*runs, *_bound(linear, given)]
    (gelu, upper), (around, top) = calls[-2:], arrays[-2:]
    runs += _bound(linear, given | {"dweight": None})
    also = {"dbias"} if _adds(upper, "dbias") else set()
    runs += _bound(gelu, around, y=made_later, dbias=top.get("dbias"), also=also)
    runs += _bound(linear, given | {"dx": None}) if given.get("dweight") is not None else []
    return [*runs, *_bound(upper, top | {"dbias": None})]


def _bound(call: Call, arrays: dict[str, Any], *, also: set[str] | None = None, **more: Any) -> list[Native]:
    """As by itself, with other arrays or `more` of them; `also`: to which of these it adds."""
    binder = getattr(import_module(f"tapeless.ops.{call.op}.cuda"), call.direction)
    arguments = [arrays.get(name) for name in call.signature.arguments] + [value for _, value in call.scalars]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add") | (also or set())
    natives: list[Native] = binder(*arguments, **({"add": added} if added else {}), **more)
    return natives


def _view(call: Call, name: str) -> View | None:
    return next((argument.view for argument in call.arguments if argument.name == name), None)


def _adds(call: Call, name: str) -> bool:
    return any(argument.name == name and argument.mode == "add" for argument in call.writes)
