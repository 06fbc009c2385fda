"""How the device binds the groups that `lowering.gpu` fuses: as one, so that less is carried to memory and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.lowering.gpu import CallGroup, LinearBackward, made_again
from tapeless.ops.contract import NONE
from tapeless.ops.linear.cuda import takes_gelu
from tapeless.program.call import Call


def bind(group: CallGroup, arrays: Sequence[dict[str, Any]]) -> list[Native]:
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


def _bind_back(group: CallGroup, lower: LinearBackward, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """The order of the list, but for the lower weights' gradients, which wait for the activation."""
    calls, upper = group.calls, group.upper
    linear, given = calls[lower.linear], arrays[lower.linear]
    dy, start = given["dy"], linear["dy"].start
    narrow = scratch(dy, *dy.shape, dtype=given["weight"].dtype) if dy.dtype != given["weight"].dtype else dy
    also = {"dbelow"} if _adds(linear, "dbias") else set()
    copy = None if narrow is dy else narrow
    runs = _bound(calls[0], arrays[0], copy=copy, dbelow=given.get("dbias"), also=also)
    again = made_again(group)
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


def _adds(call: Call, name: str) -> bool:
    return any(argument.name == name and argument.mode == "add" for argument in call.writes)
