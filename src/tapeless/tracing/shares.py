"""The gradient of one weight as a sum over tokens.

A weight is used at every position, and its gradient is the sum of what each of them sends back. The calls that write
the gradient have what it takes: a row of theirs is a token, and for each op below the share of a row is written out,
as factors whose product it is. `contributions` runs a batch and reads them at the calls; their sum is the engine's own
gradient, which stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Call, View, gradient_name

Values = Mapping[str, Array]
Shares = tuple[Array, dict[str, Array]]  # the rows that take part, and of each the factors of its share
AT_ONCE = 1 << 22  # scores that are computed together


@dataclass(frozen=True)
class Part:
    """What one call brings to the gradient of an element, row by row."""

    call: int
    title: str
    formula: str  # of the gradient as a whole, with the names of the call
    sequence: Array  # of each row that takes part: which sequence of the batch it is of,
    position: Array  # and where in it
    factors: dict[str, Array]
    shares: Array  # the products of the factors


@dataclass(frozen=True)
class Contributions:
    """`parts`: one for each call that adds to it; a tied embedding has two."""

    name: str
    index: tuple[int, ...]
    gradient: float  # as the engine has added it up, in its own precision
    parts: tuple[Part, ...]

    @property
    def total(self) -> float:
        """The sum of all shares, in float64."""
        return fsum(share for part in self.parts for share in part.shares.tolist())


def contributions(
    model: Model, name: str, index: Sequence[int], inputs: Any, targets: Any, *, count: float | None = None
) -> Contributions:
    """Of element `index` of the weight `name`, for a batch: what each token's share of its gradient is.

    The model's gradients are those of the batch afterwards. `count` is as for `Model.forward_backward`.
    """
    place = checked_element(model, name, index)
    model.feed(inputs, targets, count)
    gradient, found = gradient_name(name), []
    for number, call in _walked(model):
        for argument in call.writes:
            inside = _inside(argument.view, gradient, place)
            if inside is not None and call.phase == "backward":
                found.append(_part(model, number, call, argument.name, inside))
    return Contributions(name, place, float(model.read(gradient)[place]), tuple(found))


def checked_element(model: Model, name: str, index: Sequence[int]) -> tuple[int, ...]:
    if name not in model.grads:
        if name in model.params:
            raise TapelessError(f"{name} is frozen, so it has no gradient: choose a weight that is trained.")
        raise unknown("weight", name, model.grads)
    shape = tuple(model.grads[name].shape)
    place = tuple(int(each) for each in index)
    if len(place) != len(shape) or not all(0 <= at < size for at, size in zip(place, shape, strict=True)):
        spelled = "×".join(map(str, shape))
        raise TapelessError(f"{name} is {spelled}, so it has no element {list(place)}.")
    return place


def _walked(model: Model) -> Iterator[tuple[int, Call]]:
    phases = ("zero", "forward", "recompute", "backward")
    numbers = [number for number, call in enumerate(model.program.calls) if call.phase in phases]
    return zip(numbers, model.engine.walk(*phases), strict=True)


def _inside(view: View, gradient: str, place: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where the element is in what a call writes; None where it is not there."""
    if view.buffer.name != gradient or not view.start <= place[-1] < view.stop:
        return None
    return (*place[:-1], place[-1] - view.start)


def _part(model: Model, number: int, call: Call, argument: str, place: tuple[int, ...]) -> Part:
    rule = RULES.get((call.op, argument))
    if rule is None:
        raise TapelessError(
            f"{call.title} writes {argument} of this weight, and how its rows add up to it is not written down here: "
            f"add a rule for it to tapeless.tracing.shares."
        )
    rows, factors = rule(_read(model, call), place)
    shares = np.ones(len(rows))
    for values in factors.values():
        shares = shares * values
    leading = call["dy" if call.has("dy") else "x"].shape[:-1]  # B T, or B 1 where the last position alone goes on
    sequence, position = np.divmod(rows, leading[1])
    if leading[1] == 1:
        position = np.full_like(position, model.time - 1)
    formula = call.signature.writes[argument]
    return Part(number, call.title, formula, sequence, position, factors, shares)


def _read(model: Model, call: Call) -> dict[str, Array]:
    """What a call has read, as its kernel sees it, and its scalars; what it is to be added up from in float64."""
    found = {}
    for argument in call.arguments:
        if argument.mode == "read":
            values = model.engine.read(argument.view)
            values = values.reshape(call.spec.kernel_shape(argument.name, values.shape))
            found[argument.name] = values if values.dtype.kind in "iu" else values.astype(np.float64)
    return found | {name: np.array(value) for name, value in call.scalars if isinstance(value, float)}


def _every(rows: Array) -> Array:
    return np.arange(len(rows))


# linear: dweight = xᵀ @ dy, dbias = Σ_R dy


def _linear_weight(values: Values, place: tuple[int, ...]) -> Shares:
    x, dy = values["x"], values["dy"]
    return _every(dy), {"x": x[:, place[0]], "dy": dy[:, place[1]]}


def _bias(values: Values, place: tuple[int, ...]) -> Shares:
    dy = values["dy"]
    return _every(dy), {"dy": dy[:, place[0]]}


# adapt: dweight = scale · lowᵀ @ dy


def _adapt(values: Values, place: tuple[int, ...]) -> Shares:
    low, dy = values["low"], values["dy"]
    return _every(dy), {"scale": np.full(len(dy), values["scale"]), "low": low[:, place[0]], "dy": dy[:, place[1]]}


# layernorm: dweight = Σ_R dy·x̂, dbias = Σ_R dy; rmsnorm: dweight = Σ_RH dy·x̂


def _layernorm_weight(values: Values, place: tuple[int, ...]) -> Shares:
    channel = place[0]
    normed = (values["x"][:, channel] - values["mean"]) * values["rstd"]
    return _every(normed), {"x̂": normed, "dy": values["dy"][:, channel]}


def _rmsnorm_weight(values: Values, place: tuple[int, ...]) -> Shares:
    """A row has H stretches that share the weight, each with a share of its own."""
    rstd = values["rstd"]
    rows, stretches = rstd.shape
    x, dy = (values[name].reshape(rows, stretches, -1)[:, :, place[0]] for name in ("x", "dy"))
    return np.repeat(np.arange(rows), stretches), {"x̂": (x * rstd).reshape(-1), "dy": dy.reshape(-1)}


# embedding: dweight = Σ dy over the rows of each token; positions: dtable = Σ_B dy


def _embedding(values: Values, place: tuple[int, ...]) -> Shares:
    rows = np.flatnonzero(values["tokens"] == place[0])
    return rows, {"dy": values["dy"][rows, place[1]]}


def _positions(values: Values, place: tuple[int, ...]) -> Shares:
    dy = values["dy"]
    batch, time, _ = dy.shape
    if place[0] >= time:  # a position that no sequence of this batch reaches
        return np.empty(0, np.int64), {"dy": np.empty(0)}
    return np.arange(batch) * time + place[0], {"dy": dy[:, place[0], place[1]]}


# classifier: dweight = dzᵀ @ x, dz = (softmax z − onehot target) / count


def _classifier(values: Values, place: tuple[int, ...]) -> Shares:
    word, channel = place
    x, weight, targets = values["x"], values["weight"], values["targets"]
    valid = np.flatnonzero(targets >= 0)
    dz = np.empty(len(valid))
    step = max(1, AT_ONCE // len(weight))
    for start in range(0, len(valid), step):
        rows = valid[start : start + step]
        scores = x[rows] @ weight.T
        scores -= scores.max(axis=1, keepdims=True)
        dz[start : start + step] = np.exp(scores[:, word]) / np.exp(scores).sum(axis=1) - (targets[rows] == word)
    if "class_weights" in values:
        dz *= values["class_weights"][targets[valid]]
    return valid, {"x": x[valid, channel], "dz": dz / values["count"][0]}


RULES: dict[tuple[str, str], Callable[[Values, tuple[int, ...]], Shares]] = {
    ("linear", "dweight"): _linear_weight,
    ("adapt", "dweight"): _adapt,
    ("linear", "dbias"): _bias,
    ("layernorm", "dweight"): _layernorm_weight,
    ("layernorm", "dbias"): _bias,
    ("rmsnorm", "dweight"): _rmsnorm_weight,
    ("embedding", "dweight"): _embedding,
    ("positions", "dtable"): _positions,
    ("classifier", "dweight"): _classifier,
}
