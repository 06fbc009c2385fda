"""Consecutive calls that the device binds as one where nothing looks in between: what they compute is what they compute
singly, and less is carried to memory and back.

- residual, norm: the sum is normed while it is at hand.
- linear, gelu: where cuBLAS takes the product, it makes the GELU on its way, from what the product is before it is
  rounded.
- rope, rope, both forward or both backward: queries and keys of a place are turned by the same angles.
- norm backward, …, linear backward: the gradient of the stream is summed by column and rounded, as the linear wants it,
  while it is at hand. Between the two may stand what is computed again for the linear.
- linear backward, activation backward, linear backward: one pass makes the gradient before the activation and the
  activation once more, which the lower weights' gradient reads; of a GELU's also the column sums, which are the upper
  bias's gradient.

Norms are LayerNorm and RMSNorm of whole rows, activations GELU and SwiGLU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.linear.cuda import takes_gelu
from tapeless.program.call import Call, View

NORMS, ACTIVATIONS = ("layernorm", "rmsnorm"), ("gelu", "swiglu")


class Group(NamedTuple):
    """Calls from `first` on, by what they are to each other."""

    first: int
    calls: tuple[Call, ...]
    linear: int = 0  # where among them the linear stands that a norm's backward prepares; 0: of another kind
    activation: bool = False  # whether an activation's backward and another linear's follow it

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1


def groups(calls: Sequence[Call]) -> Iterator[Group]:
    """From the first call to the last, none in two of them."""
    number = 0
    while number < len(calls):
        found = _pair(calls, number) or _back(calls, number)
        if found:
            yield found
        number = found.last + 1 if found else number + 1


def bind(group: Group, arrays: Sequence[dict[str, Any]]) -> list[Native]:
    """`arrays`: of each call, by argument."""
    if group.linear:
        return _bind_back(group, arrays)
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


def _back(calls: Sequence[Call], number: int) -> Group | None:
    """A norm's backward, what is computed again, and the backward of the linear that reads the norm's dx."""
    above = calls[number]
    if not _is_norm(above, "backward") or _view(above, "dx") is None:
        return None
    at = number + 1
    while at < len(calls) and calls[at].direction == "forward" and calls[at].op in (*NORMS, *ACTIVATIONS):
        at += 1
    if at == len(calls) or calls[at].title != "linear.backward" or calls[at]["dy"] != above["dx"]:
        return None
    linear, following = at - number, tuple(calls[at + 1 : at + 3])
    activation = len(following) == 2 and _is_around_activation(calls[at], *following)
    return Group(number, tuple(calls[number : at + (3 if activation else 1)]), linear, activation)


def _is_norm(call: Call, direction: str) -> bool:
    """Of whole rows: heads are normed on their way to attention."""
    return call.op in NORMS and call.direction == direction and call.dims.get("H", 1) == 1


def _is_around_activation(lower: Call, activation: Call, upper: Call) -> bool:
    if activation.op not in ACTIVATIONS or {activation.direction, upper.direction} != {"backward"}:
        return False
    below = activation["dx"] if activation.op == "gelu" else activation["dgate"]
    return upper.op == "linear" and activation["dy"] == _view(lower, "dx") and upper["dy"].buffer == below.buffer


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
        again = group.activation and call["y"] == _view(linear, "x")
        if again and all(call[name] == calls[-2][name] for name in call.signature.reads):
            made_later = own["y"]
        else:
            runs += _bound(call, own)
    if not group.activation:
        return [*runs, *_bound(linear, given)]
    (activation, upper), (around, top) = calls[-2:], arrays[-2:]
    runs += _bound(linear, given | {"dweight": None})
    if activation.op == "gelu":
        also = {"dbias"} if _adds(upper, "dbias") else set()
        runs += _bound(activation, around, y=made_later, dbias=top.get("dbias"), also=also)
        top = top | {"dbias": None}
    else:
        runs += _bound(activation, around, y=made_later)
    runs += _bound(linear, given | {"dx": None}) if given.get("dweight") is not None else []
    return [*runs, *_bound(upper, top)]


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
