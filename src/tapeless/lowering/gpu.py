"""Groups of consecutive calls that a GPU runs as one: they compute what they compute one after the other, and less is
carried to memory and back.

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

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapeless.lowering.rules import Fusion
from tapeless.program.call import Call, View
from tapeless.program.lowered import Over, covers

Find = Callable[[Sequence[Call], int], "CallGroup | None"]
NORMS, ACTIVATIONS = ("layernorm", "rmsnorm"), ("gelu", "swiglu")


class LinearBackward(NamedTuple):
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

    def since(self, first: int) -> LinearBackward:
        low = None if self.low is None else self.low - first
        return LinearBackward(tuple(each - first for each in self.adapts), low, self.linear - first)


class CallGroup(NamedTuple):
    """Calls from `first` on, by what they are to each other."""

    first: int
    calls: tuple[Call, ...]
    lower: LinearBackward | None = None  # that a norm's backward prepares; None: calls of another kind
    upper: LinearBackward | None = None  # that follows it, with an activation's backward between the two

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1


def _over(calls: Sequence[Call]) -> Over:
    """The gradient before an activation may be written over what the activation was of, and the gradient behind it has
    the place where the activation is made once more: the pass that makes the first and the last of them reads the other
    two number by number, and nobody reads those again. Walked singly, a linear's backward reads all of the activation
    before it writes its dx."""
    group = group_of(calls)
    if group.upper is None or group.lower is None:
        return ()
    activation, lower = group.calls[group.upper.first - 1], [group.calls[each] for each in group.lower.linears]
    given = {argument.view.buffer for argument in activation.reads if argument.name != "dy"}
    made = {argument.view.buffer for argument in activation.writes}
    later = {argument.view.buffer for call in group.calls[group.upper.first :] for argument in call.reads}
    found = [(made.pop(), given.pop())] if len(given) == len(made) == 1 and not given & later else []
    again = made_again(group)
    if again is not None and all(_view(call, "x") is None for call in lower[1:]):
        found.append((activation["dy"].buffer, group.calls[again]["y"].buffer))
    return tuple(found)


def made_again(group: CallGroup) -> int | None:
    """Which call computes the activation again that is between the linears, so that its backward may do it instead."""
    if group.upper is None or group.lower is None:
        return None
    activation, read = group.calls[group.upper.first - 1], [_view(group.calls[n], "x") for n in group.lower.linears]
    for number in range(1, group.lower.first):
        call = group.calls[number]
        if call["y"] in read and all(call[name] == _view(activation, name) for name in call.signature.reads):
            return number
    return None


def _normed(calls: Sequence[Call], number: int) -> CallGroup | None:
    """A residual and the norm of its sum."""
    pair = tuple(calls[number : number + 2])
    found = len(pair) == 2 and pair[0].title == "residual.forward" and _is_norm(pair[1], "forward")
    return CallGroup(number, pair) if found and pair[0]["y"] == pair[1]["x"] else None


def _gelu(calls: Sequence[Call], number: int) -> CallGroup | None:
    """A linear and its GELU."""
    pair = tuple(calls[number : number + 2])
    found = [call.title for call in pair] == ["linear.forward", "gelu.forward"]
    return CallGroup(number, pair) if found and pair[0]["y"] == pair[1]["x"] else None


def _rotated(calls: Sequence[Call], number: int) -> CallGroup | None:
    """RoPE of queries and of keys, by the same angles."""
    pair = tuple(calls[number : number + 2])
    if [call.title for call in pair] not in (["rope.forward"] * 2, ["rope.backward"] * 2):
        return None
    sizes = [{key: value for key, value in call.dims.items() if key != "C"} for call in pair]
    same = sizes[0] == sizes[1] and all(pair[0][name] == pair[1][name] for name in ("cos", "sin"))
    return CallGroup(number, pair) if same else None


def _adapted(calls: Sequence[Call], number: int) -> CallGroup | None:
    """A linear and what adapts all of its columns."""
    linear = calls[number]
    if linear.title != "linear.forward" or number + 1 == len(calls) or calls[number + 1].title != "linear.forward":
        return None
    low, at = calls[number + 1]["y"].buffer, number + 2
    while at < len(calls) and calls[at].title == "adapt.forward" and calls[at]["low"].buffer == low:
        at += 1
    y, parts = linear["y"], [call["y"] for call in calls[number + 2 : at]]
    inside = all(part.buffer == y.buffer for part in parts)
    once = inside and sum(part.stop - part.start for part in parts) == y.stop - y.start and covers(parts, y)
    return CallGroup(number, tuple(calls[number:at])) if once else None


def _back(calls: Sequence[Call], number: int) -> CallGroup | None:
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
    return CallGroup(number, tuple(calls[number : end + 1]), lower.since(number), upper and upper.since(number))


def _affine(calls: Sequence[Call], at: int) -> LinearBackward | None:
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
    return LinearBackward(adapts, low, linear) if same else None


def _is_norm(call: Call, direction: str) -> bool:
    """Of whole rows: heads are normed on their way to attention."""
    return call.op in NORMS and call.direction == direction and call.dims.get("H", 1) == 1


def _is_around_activation(lower: Call, activation: Call, upper: Call) -> bool:
    if activation.op not in ACTIVATIONS or {activation.direction, upper.direction} != {"backward"}:
        return False
    below = activation["dx"] if activation.op == "gelu" else activation["dgate"]
    return upper.op == "linear" and activation["dy"] == _view(lower, "dx") and upper["dy"].buffer == below.buffer


def _view(call: Call, name: str) -> View | None:
    return next((argument.view for argument in call.arguments if argument.name == name), None)


def _rule(name: str, find: Find, over: Callable[[Sequence[Call]], Over] | None = None) -> Fusion:
    def match(calls: Sequence[Call], number: int) -> int | None:
        found = find(calls, number)
        return found.last + 1 if found else None

    return Fusion(name, match, over) if over else Fusion(name, match)


FINDS: dict[str, Find] = {
    "norm of a residual": _normed,
    "linear with GELU": _gelu,
    "RoPE of queries and keys": _rotated,
    "adapters first": _adapted,
    "norm to linear backward": _back,
}
FUSIONS = tuple(_rule(name, find, _over if find is _back else None) for name, find in FINDS.items())


def group_of(calls: Sequence[Call]) -> CallGroup:
    """What the parts of a fused call are to each other."""
    found = next(group for find in FINDS.values() if (group := find(calls, 0)) is not None)
    assert len(found.calls) == len(calls), "a group is matched by its own calls alone"
    return found
