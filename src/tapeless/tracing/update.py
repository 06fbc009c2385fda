"""One update of a model, kept whole: what every weight was before and after it, and the arithmetic of each element.

The engine makes the update; here it is computed once more for one element, line by line, from the numbers that were
there before. Both results are kept, so that who reads the lines sees that they are what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Buffer, Call, Weight, gradient_name, member_offsets
from tapeless.tracing.shares import Contributions, checked_element, contributions

Batch = tuple[Any, Any]  # inputs and targets


@dataclass(frozen=True)
class Line:
    """`name = formula`, the formula with numbers in the place of names, and what comes out."""

    name: str
    formula: str
    numbers: str
    value: float


@dataclass(frozen=True)
class Arithmetic:
    """`lines` are empty where the optimizer's rule for an element is not written down here: it may be none."""

    optimizer: str
    before: float
    after: float  # as the engine has it
    lines: tuple[Line, ...]

    @property
    def computed(self) -> float:
        """What the lines come to."""
        return self.lines[-1].value if self.lines else self.after


class Update:
    """An update that was made and taken back: the model is as it was before."""

    def __init__(
        self, model: Model, batches: Sequence[Batch], lr: float, clip: float | None = None, count: float | None = None
    ) -> None:
        """`count`: what the loss is divided by, over all batches; that of a single batch is its own."""
        if not batches:
            raise TapelessError("an update needs at least one batch.")
        self.model, self.batches, self.lr, self.clip = model, list(batches), lr, clip
        self.count = sum(model.weigh(targets) for _, targets in batches) if count is None else count
        self.draws, steps = model.draws, model.steps
        self.before, self.state = model.weights(), {name: model.read(name).copy() for name in model.state}
        self.before = {name: array.copy() for name, array in self.before.items()}
        try:
            self._make()
        finally:  # however it ended, it is taken back
            for name, array in (*self.before.items(), *self.state.items()):
                model.write(name, array)
            model.steps, model.draws = steps, self.draws

    def _make(self) -> None:
        model = self.model
        losses = [
            model.forward_backward(*batch, accumulate=number > 0, count=self.count)
            for number, batch in enumerate(self.batches)
        ]
        self.loss = float(sum(losses))
        self.gradients = {name: model.read(gradient_name(name)).copy() for name in model.grads}
        try:
            self.norm = model.update(self.lr, clip=self.clip)
        except NonFiniteError as error:
            raise TapelessError(f"this update was not made: {error}") from None
        self.scale = float(model.read("scale")[0])
        self.number = model.steps
        self.after = {name: model.read(name).copy() for name in model.grads}

    def change(self, name: str) -> Array:
        """How far each element was moved."""
        moved: Array = self.after[name].astype(np.float64) - self.before[name]
        return moved

    def largest(self, of: str = "update", name: str | None = None) -> tuple[str, tuple[int, ...]]:
        """Where the largest "update" is, or the largest "gradient"; in one weight, or in all."""
        best: tuple[float, str, tuple[int, ...]] | None = None
        for each in [name] if name else list(self.after):
            values = np.abs(self.change(each) if of == "update" else self.gradients[each])
            place = np.unravel_index(int(np.argmax(values)), values.shape)
            if best is None or values[place] > best[0]:
                best = float(values[place]), each, tuple(int(at) for at in place)
        assert best is not None
        return best[1], best[2]

    def contributions(self, name: str, index: Sequence[int]) -> list[Contributions]:
        """Of each batch of the update."""
        self.model.draws = self.draws
        try:
            return [contributions(self.model, name, index, *batch, count=self.count) for batch in self.batches]
        finally:
            self.model.draws = self.draws

    def arithmetic(self, name: str, index: Sequence[int]) -> Arithmetic:
        """The optimizer's lines for one element."""
        place = checked_element(self.model, name, index)
        call, start = self._update_of(name)
        shape = self.before[name].shape
        at = start + (int(np.ravel_multi_index(place, shape)) if shape else 0)
        before, after = float(self.before[name][place]), float(self.after[name][place])
        rule, optimizer = RULES.get(call.op), self.model.optimizer
        assert optimizer is not None
        if rule is None:
            return Arithmetic(optimizer.name, before, after, ())
        numbers = {
            each: float(self.state[call[each].buffer.name].reshape(-1)[at]) for each in ("m", "v") if call.has(each)
        }
        scalars = dict(call.scalars)
        decays = any(first <= at < last for first, last in scalars.get("decayed", ()))
        scalars["decay"] = scalars.get("decay", 0.0) if decays else 0.0
        gradient = float(self.gradients[name][place])
        given = {"w": before, "gradient": gradient, "scale": self.scale, "lr": self.lr, "t": self.number, **numbers}
        return Arithmetic(optimizer.name, before, after, tuple(rule({**scalars, **given})))

    def _update_of(self, name: str) -> tuple[Call, int]:
        """The call that steps a weight, and where in its region the weight begins."""
        for call in self.model.program.phase("update"):
            if not call.has("weights"):
                continue
            region: Buffer = call["weights"].buffer
            starts = member_offsets(region.members)[0]
            for member, start in zip(region.members, starts, strict=True):
                if isinstance(member, Weight) and member.name == name:
                    return call, start
        raise TapelessError(f"no call of this model's update steps {name}.")


def shown(value: float) -> str:
    """A number as it stands in a formula: enough digits to follow, a sign that cannot be overlooked."""
    text = f"{value:.6g}".replace("-", "−")
    return f"({text})" if value < 0 else text


class _Lines:
    """Writes a line and keeps its value for the next."""

    def __init__(self, given: Mapping[str, float]) -> None:
        self.values = dict(given)
        self.found: list[Line] = []

    def add(self, name: str, formula: str, numbers: str, value: float) -> None:
        self.values[name.rstrip("′")] = value
        self.found.append(Line(name, formula, numbers, value))


def _clipped(given: Mapping[str, float]) -> _Lines:
    lines, scale, gradient = _Lines(given), given["scale"], given["gradient"]
    lines.add("g", "scale·gradient", f"{shown(scale)}·{shown(gradient)}", scale * gradient)
    return lines


def _sgd(given: Mapping[str, float]) -> list[Line]:
    lines = _clipped(given)
    w, lr, g = given["w"], given["lr"], lines.values["g"]
    lines.add("w′", "w − lr·g", f"{shown(w)} − {shown(lr)}·{shown(g)}", w - lr * g)
    return lines.found


def _momentum(given: Mapping[str, float]) -> list[Line]:
    lines = _clipped(given)
    w, lr, m, momentum, g = given["w"], given["lr"], given["m"], given["momentum"], lines.values["g"]
    lines.add("m′", "momentum·m + g", f"{shown(momentum)}·{shown(m)} + {shown(g)}", momentum * m + g)
    m = lines.values["m"]
    lines.add("w′", "w − lr·m′", f"{shown(w)} − {shown(lr)}·{shown(m)}", w - lr * m)
    return lines.found


def _adamw(given: Mapping[str, float]) -> list[Line]:
    lines = _clipped(given)
    beta1, beta2, eps, decay, lr, t = (given[name] for name in ("beta1", "beta2", "eps", "decay", "lr", "t"))
    m, v, w, g = given["m"], given["v"], given["w"], lines.values["g"]
    mean, square = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    lines.add("m′", "β₁·m + (1 − β₁)·g", f"{beta1:g}·{shown(m)} + {1 - beta1:g}·{shown(g)}", mean)
    lines.add("v′", "β₂·v + (1 − β₂)·g²", f"{beta2:g}·{shown(v)} + {1 - beta2:g}·{shown(g)}²", square)
    for name, moment, beta, sign in (("m̂", mean, beta1, "₁"), ("v̂", square, beta2, "₂")):
        first = name[0]
        corrected = moment / (1 - beta**t)
        lines.add(name, f"{first}′ / (1 − β{sign}ᵗ)", f"{shown(moment)} / (1 − {beta:g}^{int(t)})", corrected)
    mean, square = lines.values["m̂"], lines.values["v̂"]
    step = lr * mean / (sqrt(square) + eps)
    lines.add("step", "lr·m̂ / (√v̂ + eps)", f"{shown(lr)}·{shown(mean)} / (√{shown(square)} + {eps:g})", step)
    shrunk = lr * decay * w
    if decay:
        lines.add("decay", "lr·decay·w", f"{shown(lr)}·{decay:g}·{shown(w)}", shrunk)
        lines.add("w′", "w − decay − step", f"{shown(w)} − {shown(shrunk)} − {shown(step)}", w - shrunk - step)
    else:
        lines.add("w′", "w − step", f"{shown(w)} − {shown(step)}", w - step)
    return lines.found


RULES: dict[str, Callable[[Mapping[str, float]], list[Line]]] = {"sgd": _sgd, "momentum": _momentum, "adamw": _adamw}
