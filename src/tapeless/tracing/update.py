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
        optimizer = self.model.optimizer
        assert optimizer is not None
        if call.op not in RULES:
            return Arithmetic(optimizer.name, before, after, ())
        numbers = {
            each: float(self.state[call[each].buffer.name].reshape(-1)[at]) for each in ("m", "v") if call.has(each)
        }
        scalars = dict(call.scalars)
        decays = any(first <= at < last for first, last in scalars.get("decayed", ()))
        scalars["decay"] = scalars.get("decay", 0.0) if decays else 0.0
        gradient = float(self.gradients[name][place])
        given = {"w": before, "gradient": gradient, "scale": self.scale, "lr": self.lr, "t": self.number, **numbers}
        rests = {f"rest{n}": 1 - scalars.get(f"beta{n}", 0.0) for n in (1, 2)}
        rule = RULES["adam" if call.op == "adamw" and not scalars["decay"] else call.op]
        return Arithmetic(optimizer.name, before, after, _lines(rule, {**scalars, **rests, **given}))

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


Rule = tuple[str, str, str, Callable[[Mapping[str, float]], float]]  # name, formula, the same with numbers, value
BRIEF = ("beta1", "beta2", "rest1", "rest2", "eps", "decay", "t")  # numbers that are shown as they were given

CLIPPED: Rule = ("g", "scale·gradient", "{scale}·{gradient}", lambda v: v["scale"] * v["gradient"])
ADAM: tuple[Rule, ...] = (
    CLIPPED,
    ("m′", "β₁·m + (1 − β₁)·g", "{beta1}·{m} + {rest1}·{g}", lambda v: v["beta1"] * v["m"] + v["rest1"] * v["g"]),
    (
        "v′",
        "β₂·v + (1 − β₂)·g²",
        "{beta2}·{v} + {rest2}·{g}²",
        lambda v: v["beta2"] * v["v"] + v["rest2"] * v["g"] * v["g"],
    ),
    ("m̂", "m′ / (1 − β₁ᵗ)", "{m} / (1 − {beta1}^{t})", lambda v: v["m"] / (1 - v["beta1"] ** v["t"])),
    ("v̂", "v′ / (1 − β₂ᵗ)", "{v} / (1 − {beta2}^{t})", lambda v: v["v"] / (1 - v["beta2"] ** v["t"])),
    (
        "step",
        "lr·m̂ / (√v̂ + eps)",
        "{lr}·{m̂} / (√{v̂} + {eps})",
        lambda v: v["lr"] * v["m̂"] / (sqrt(v["v̂"]) + v["eps"]),
    ),
)
RULES: dict[str, tuple[Rule, ...]] = {
    "sgd": (CLIPPED, ("w′", "w − lr·g", "{w} − {lr}·{g}", lambda v: v["w"] - v["lr"] * v["g"])),
    "momentum": (
        CLIPPED,
        ("m′", "momentum·m + g", "{momentum}·{m} + {g}", lambda v: v["momentum"] * v["m"] + v["g"]),
        ("w′", "w − lr·m′", "{w} − {lr}·{m}", lambda v: v["w"] - v["lr"] * v["m"]),
    ),
    "adam": (*ADAM, ("w′", "w − step", "{w} − {step}", lambda v: v["w"] - v["step"])),
    "adamw": (
        *ADAM,
        ("shrunk", "lr·decay·w", "{lr}·{decay}·{w}", lambda v: v["lr"] * v["decay"] * v["w"]),
        ("w′", "w − decay − step", "{w} − {shrunk} − {step}", lambda v: v["w"] - v["shrunk"] - v["step"]),
    ),
}


def _lines(rule: tuple[Rule, ...], given: Mapping[str, Any]) -> tuple[Line, ...]:
    """Write each line with its numbers, and keep its value for the next."""
    values = {name: value for name, value in given.items() if isinstance(value, int | float)}
    found = []
    for name, formula, numbers, value in rule:
        texts = {each: f"{number:g}" if each in BRIEF else shown(number) for each, number in values.items()}
        values[name.rstrip("′")] = value(values)
        label = "decay" if name == "shrunk" else name
        found.append(Line(label, formula, numbers.format_map(texts), values[name.rstrip("′")]))
    return tuple(found)
