"""Consecutive calls that the device binds as one where nothing looks in between: what they compute is what they compute
singly, and less is carried to memory and back.

- residual, norm: the sum is normed while it is at hand.
- linear, gelu: where cuBLAS takes the product, it makes the GELU on its way, from what the product is before it is
  rounded.
- linear, linear, adapt, …: where adapters reach all columns of a product, they write it and the product adds to it,
  which it does on its way, while adding to what a product has written is a pass over it.
- rope, rope, both forward or both backward: queries and keys of a place are turned by the same angles.
- norm backward, …, linear backward: the gradient of the stream is summed by column and rounded, as the linear wants it,
  while it is at hand. Between the two may stand what is computed again for the linear.
- linear backward, activation backward, linear backward: one pass makes the gradient before the activation and the
  activation once more, which the lower weights' gradient reads; of a GELU's also the column sums, which are the upper
  bias's gradient.

The backward of an adapted linear begins with that of its adapters, which read the same gradient.

Norms are LayerNorm and RMSNorm of whole rows, activations GELU and SwiGLU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE
from tapeless.ops.linear.cuda import takes_gelu
from tapeless.program.call import Buffer, Call, View

NORMS, ACTIVATIONS = ("layernorm", "rmsnorm"), ("gelu", "swiglu")


class Affine(NamedTuple):
    """A linear's backward and before it that of its adapters, by their numbers."""

    adapts: tuple[int, ...]
    low: int | None  # the linear that the adapters read
    linear: int

    @property
    def first(self) -> int:
        return min((*self.adapts, *self.linears))

    @property
    def linears(self) -> tuple[int, ...]:
        """In their order."""
        return (self.linear,) if self.low is None else (self.low, self.linear)

    def since(self, first: int) -> Affine:
        low = None if self.low is None else self.low - first
        return Affine(tuple(each - first for each in self.adapts), low, self.linear - first)


class Group(NamedTuple):
    """Calls from `first` on, by what they are to each other."""

    first: int
    calls: tuple[Call, ...]
    lower: Affine | None = None  # that a norm's backward prepares; None: calls of another kind
    upper: Affine | None = None  # that follows it, with an activation's backward between the two

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1


def groups(calls: Sequence[Call]) -> Iterator[Group]:
    """From the first call to the last, none in two of them."""
    number = 0
    while number < len(calls):
        found = _pair(calls, number) or _adapted(calls, number) or _back(calls, number)
        if found:
            yield found
        number = found.last + 1 if found else number + 1


def over(group: Group) -> tuple[tuple[Buffer, Buffer], ...]:
    """The gradient before an activation may be written over what the activation was of, and the gradient behind it has
    the place where the activation is made once more: the pass that makes the first and the last of them reads the other
    two number by number, and nobody reads those again. Walked singly, a linear's backward reads all of the activation
    before it writes its dx."""
    if group.upper is None or group.lower is None:
        return ()
    activation, lower = group.calls[group.upper.first - 1], [group.calls[each] for each in group.lower.linears]
    given = {argument.view.buffer for argument in activation.reads if argument.name != "dy"}
    made = {argument.view.buffer for argument in activation.writes}
    later = {argument.view.buffer for call in group.calls[group.upper.first :] for argument in call.reads}
    found = [(made.pop(), given.pop())] if len(given) == len(made) == 1 and not given & later else []
    again = _made_again(group)
    if again is not None and all(_view(call, "x") is None for call in lower[1:]):
        found.append((activation["dy"].buffer, group.calls[again]["y"].buffer))
    return tuple(found)


def _made_again(group: Group) -> int | None:
    """Which call computes the activation again that is between the linears, so that its backward may do it instead."""
    if group.upper is None or group.lower is None:
        return None
    activation, read = group.calls[group.upper.first - 1], [_view(group.calls[n], "x") for n in group.lower.linears]
    for number in range(1, group.lower.first):
        call = group.calls[number]
        if call["y"] in read and all(call[name] == _view(activation, name) for name in call.signature.reads):
            return number
    return None


def bind(group: Group, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """`arrays`: of each call, by argument."""
    if group.lower:
        return _bind_back(group, group.lower, arrays)
    if group.calls[-1].op == "adapt":
        adapters = zip(group.calls[1:], arrays[1:], strict=True)
        runs = [run for call, own in adapters for run in _bound(call, own, add=NONE)]
        return [*runs, *_bound(group.calls[0], arrays[0], add=frozenset({"y"}))]
    (first, given), (second, own) = zip(group.calls, arrays, strict=True)
    if first.op == "rope":
        to, of = ("y", "x") if first.direction == "forward" else ("dx", "dy")
        return _bound(first, given, other=(own[to], own[of]))
    if first.op == "residual":
        return _bound(second, own | {"x": given["x"]}, total=given["y"], branch=given["branch"])
    if takes_gelu(given["y"], given["x"], given["weight"], given.get("bias")):
        return _bound(first, given, gelu=own["y"])
    return [*_bound(first, given), *_bound(second, own)]


def _pair(calls: Sequence[Call], number: int) -> Group | None:
    """A residual and its norm, a linear and its GELU, queries and keys that are turned."""
    pair = tuple(calls[number : number + 2])
    titles = [call.title for call in pair]
    if titles in (["rope.forward"] * 2, ["rope.backward"] * 2):
        sizes = [{key: value for key, value in call.dims.items() if key != "C"} for call in pair]
        return Group(number, pair) if sizes[0] == sizes[1] and pair[0]["cos"] == pair[1]["cos"] else None
    normed = titles[:1] == ["residual.forward"] and _is_norm(pair[-1], "forward")
    if normed or titles == ["linear.forward", "gelu.forward"]:
        return Group(number, pair) if pair[0]["y"] == pair[1]["x"] else None
    return None


def _adapted(calls: Sequence[Call], number: int) -> Group | None:
    """A linear and what adapts all of its columns."""
    linear = calls[number]
    if linear.title != "linear.forward" or number + 1 == len(calls) or calls[number + 1].title != "linear.forward":
        return None
    low, at = calls[number + 1]["y"].buffer, number + 2
    while at < len(calls) and calls[at].title == "adapt.forward" and calls[at]["low"].buffer == low:
        at += 1
    y, parts = linear["y"], [call["y"] for call in calls[number + 2 : at]]
    reached = sum(part.stop - part.start for part in parts if part.buffer == y.buffer)
    return Group(number, tuple(calls[number:at])) if reached == y.stop - y.start else None


def _back(calls: Sequence[Call], number: int) -> Group | None:
    """A norm's backward, what is computed again, and the backward of the linear that reads the norm's dx."""
    above = calls[number]
    if not _is_norm(above, "backward") or _view(above, "dx") is None:
        return None
    at = number + 1
    while at < len(calls) and calls[at].direction == "forward" and calls[at].op in (*NORMS, *ACTIVATIONS):
        at += 1
    lower = _affine(calls, at)
    if lower is None or calls[lower.linear]["dy"] != above["dx"]:
        return None
    between = lower.linear + 1
    upper = _affine(calls, between + 1)
    if upper and not _is_around_activation(calls[lower.linear], calls[between], calls[upper.linear]):
        upper = None
    end = upper.linear if upper else lower.linear
    return Group(number, tuple(calls[number : end + 1]), lower.since(number), upper and upper.since(number))


def _affine(calls: Sequence[Call], at: int) -> Affine | None:
    """The one whose backward begins here."""
    first = at
    while at < len(calls) and calls[at].title == "adapt.backward":
        at += 1
    adapts, linears = tuple(range(first, at)), calls[at : at + 2]
    if not linears or linears[0].title != "linear.backward":
        return None
    below = [_view(calls[each], "dlow") for each in adapts[:1]]
    low = at if below and below[0] and below[0].buffer == linears[0]["dy"].buffer else None
    linear = at if low is None else at + 1
    if linear == len(calls) or calls[linear].title != "linear.backward":
        return None
    same = all(calls[each]["dy"].buffer == calls[linear]["dy"].buffer for each in adapts)
    return Affine(adapts, low, linear) if same else None


def _is_norm(call: Call, direction: str) -> bool:
    """Of whole rows: heads are normed on their way to attention."""
    return call.op in NORMS and call.direction == direction and call.dims.get("H", 1) == 1


def _is_around_activation(lower: Call, activation: Call, upper: Call) -> bool:
    if activation.op not in ACTIVATIONS or {activation.direction, upper.direction} != {"backward"}:
        return False
    below = activation["dx"] if activation.op == "gelu" else activation["dgate"]
    return upper.op == "linear" and activation["dy"] == _view(lower, "dx") and upper["dy"].buffer == below.buffer


def _bind_back(group: Group, lower: Affine, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """The order of the list, but for the lower weights' gradients, which wait for the activation."""
    calls, upper = group.calls, group.upper
    linear, given = calls[lower.linear], arrays[lower.linear]
    dy, start = given["dy"], linear["dy"].start
    narrow = scratch(dy, *dy.shape, dtype=given["weight"].dtype) if dy.dtype != given["weight"].dtype else dy
    also = {"dbelow"} if _adds(linear, "dbias") else set()
    copy = None if narrow is dy else narrow
    runs = _bound(calls[0], arrays[0], copy=copy, dbelow=given.get("dbias"), also=also)
    again = _made_again(group)
    for number in range(1, lower.first):
        runs += _bound(calls[number], arrays[number]) if number != again else []
    for each in lower.adapts:
        columns = calls[each]["dy"]
        runs += _bound(calls[each], arrays[each] | {"dy": narrow[:, columns.start - start : columns.stop - start]})
    bound = {each: arrays[each] for each in lower.linears} | {lower.linear: given | {"dy": narrow, "dbias": None}}
    if upper is None:
        return runs + [run for each, own in bound.items() for run in _bound(calls[each], own)]
    for each, own in bound.items():
        runs += _bound(calls[each], own | {"dweight": None}) if own.get("dx") is not None else []
    made_later = None if again is None else arrays[again]["y"]
    activation, around, top = calls[upper.first - 1], arrays[upper.first - 1], arrays[upper.linear]
    if activation.op == "gelu":
        also = {"dbias"} if _adds(calls[upper.linear], "dbias") else set()
        runs += _bound(activation, around, y=made_later, dbias=top.get("dbias"), also=also)
        top = top | {"dbias": None}
    else:
        runs += _bound(activation, around, y=made_later)
    for each, own in bound.items():
        runs += _bound(calls[each], own | {"dx": None}) if own.get("dweight") is not None else []
    for each in range(upper.first, upper.linear):
        runs += _bound(calls[each], arrays[each])
    return [*runs, *_bound(calls[upper.linear], top)]


def _bound(
    call: Call, arrays: dict[str, Any], *, add: frozenset[str] | None = None, also: Collection[str] = (), **more: Any
) -> list[Native]:
    """As by itself, with other arrays or `more` of them; `add`: what it adds to, if not what the call says; `also`: to
    which of `more` it adds."""
    binder = getattr(import_module(f"tapeless.ops.{call.op}.cuda"), call.direction)
    arguments = [arrays.get(name) for name in call.signature.arguments] + call.numbers
    said = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    added = (said if add is None else add) | {*also}
    natives: list[Native] = binder(*arguments, **({"add": added} if added else {}), **more)
    return natives


def _view(call: Call, name: str) -> View | None:
    return next((argument.view for argument in call.arguments if argument.name == name), None)


def _adds(call: Call, name: str) -> bool:
    return any(argument.name == name and argument.mode == "add" for argument in call.writes)
