"""Standing guard over a training: who made the first NaN or infinity, and when the loss leaps.

The fast path looks at two numbers a step, the loss and the norm of the gradients. When one of them is not finite,
the same batch is walked again, call by call, to the call that began it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

import numpy as np

from tapeless.inputs import inputs_name
from tapeless.model import Model
from tapeless.ops.contract import Array, Shape
from tapeless.program.call import Argument, Call
from tapeless.program.precision import largest

PIECE = 1 << 20  # elements examined together
DEVIATION = 1.4826  # times the median absolute deviation: the standard deviation, if the losses were normal
SUMMANDS = 1e4  # about as many products as one sum of a model has
BEFORE = {
    "input": "the input",
    "weight": "the weight",
    "frozen": "the frozen weight",
    "constant": "the constant",
    "state": "the optimizer's state",
}


@dataclass(frozen=True)
class Culprit:
    """The first place where a number is not finite."""

    kind: str  # "input", "weight", "frozen", "constant", "state": it was so before the step; "call": this call made it
    buffer: str
    index: tuple[int, ...]
    value: float
    dtype: str
    call: str = ""  # linear.forward
    layer: str = ""  # blocks.3
    source: str = ""  # the line of the model that makes the call
    position: tuple[int, int] | None = None  # sequence in the batch, token in the sequence, both from 0
    token: int | None = None  # the token id that stands there
    reads: tuple[tuple[str, float], ...] = ()  # what the call read, with the largest finite magnitude of each

    def sentence(self) -> str:
        if self.kind != "call":
            named = f"{BEFORE[self.kind]} {self.buffer}"
            return f"{named} is not finite before the step begins: {self._what()}. {self._cause()}"
        return (
            f"the first call whose result is not finite is {self.call} in {self.layer} (made at {self.source}): "
            f"{self._what()}. {self._cause()}"
        )

    def _what(self) -> str:
        where = f"{self.buffer}{list(self.index)} is {self.value}"
        if self.position is None:
            return where
        token = "" if self.token is None else f" (token {self.token})"
        return f"{where}, in sequence {self.position[0]} at position {self.position[1]}{token}"

    def _cause(self) -> str:
        if self.kind == "input":
            return "Clean the data: training cannot mend it."
        if self.kind == "frozen":
            return (
                f"No update moves it: the weights that the run began with have it so, or a number that {self.dtype} "
                f"cannot hold (it ends at {largest(self.dtype):.1e}). Look at the file that they came from."
            )
        if self.kind != "call":
            return (
                "An earlier update or a damaged file put it there: go back to the last good checkpoint and, if it "
                "happens again, lower the learning rate."
            )
        sizes = ", ".join(f"{name} up to {size:.3g}" for name, size in self.reads)
        limit = largest(self.dtype)
        if any(size * size * SUMMANDS > limit for _, size in self.reads):
            return (
                f"It read {sizes}, so the result does not fit into {self.dtype}, which ends at {limit:.1e}. Usually "
                f"the learning rate is too high and the weights have grown: lower it, warm up for longer, or clip."
            )
        return (
            f"It read only ordinary numbers ({sizes}), so the kernel itself is to be suspected: "
            f"`tapeless check` proves the kernels on this machine."
        )


def explain_nonfinite(model: Model, inputs: Any, targets: Any) -> str:
    """Where the first NaN or infinity comes from, in a few sentences; empty where walking again shows none."""
    culprit = find_nonfinite(model, inputs, targets)
    return "" if culprit is None else culprit.sentence()[0].upper() + culprit.sentence()[1:]


def find_nonfinite(model: Model, inputs: Any, targets: Any) -> Culprit | None:
    """Walk zero, forward and backward again, to the first call that writes NaN or infinity. Changes the gradients."""
    culprit = _before_the_step(model, inputs)
    if culprit:
        return culprit
    targets = np.asarray(targets)
    if (targets < 0).all():
        targets = np.zeros_like(targets)  # a part of a larger batch may have none; what overflows does so before them
    with np.errstate(all="ignore"):  # what NumPy would warn of is what is looked for
        for call, _ in model.trace(inputs, targets):
            found = _nonfinite_results(model, call)
            if found:
                return _culprit(model, call, *found[0])
    return None


def _nonfinite_results(model: Model, call: Call) -> list[tuple[Argument, tuple[int, ...]]]:
    """Where each result of a call is first not finite, those first that know the token it belongs to."""
    written = [(argument, first_nonfinite(model.engine.read(argument.view))) for argument in call.writes]
    found = [(argument, index) for argument, index in written if index is not None]
    return sorted(found, key=lambda pair: _position(model, call, *pair) is None)


def _before_the_step(model: Model, inputs: Any) -> Culprit | None:
    """NaN that came from outside, which a walk would blame on the first call that touches it."""
    if model.config.features:
        array = np.asarray(inputs)
        index = first_nonfinite(array) if array.dtype.kind == "f" else None
        if index is not None:
            value = float(array[index])
            name, dtype = inputs_name(model.config), model.precision.activation
            return Culprit("input", name, index, value, dtype, position=(index[0], index[1]))
    for kind in ("weight", "frozen", "constant", "state"):
        for buffer in model.program.buffers:
            if buffer.kind == kind and not buffer.members:
                array = model.engine.read(buffer)
                index = first_nonfinite(array)
                if index is not None:
                    dtype = model.precision.dtype(buffer.role) if kind == "frozen" else model.precision.activation
                    return Culprit(kind, buffer.name, index, float(array[index]), dtype)
    return None


def _culprit(model: Model, call: Call, argument: Argument, index: tuple[int, ...]) -> Culprit:
    position = _position(model, call, argument, index)
    arrays = ((each.view.name, model.engine.read(each.view)) for each in call.arguments if each.mode == "read")
    return Culprit(
        kind="call",
        buffer=argument.view.name,
        index=index,
        value=float(model.engine.read(argument.view)[index]),
        dtype=model.precision.activation,
        call=call.title,
        layer=call.section,
        source=call.source,
        position=position,
        token=_token(model, position),
        reads=tuple((name, _largest(array)) for name, array in arrays if array.dtype.kind == "f"),
    )


def _position(model: Model, call: Call, argument: Argument, index: tuple[int, ...]) -> tuple[int, int] | None:
    """Sequence and token that an element belongs to, where its buffer has a row or a column for each."""
    axes = _axes(call.spec.letters(argument.name), argument.view.shape)
    if axes is None:
        return None
    sequence, time = axes
    only_last = argument.view.shape[time] == 1  # a block that keeps the last position alone
    return index[sequence], model.time - 1 if only_last else index[time]


def _axes(letters: list[str], shape: Shape) -> tuple[int, int] | None:
    """Which axes of a buffer are batch and time. R stands for both."""
    if letters[:1] == ["R"]:
        return (0, 1) if len(shape) > len(letters) else None
    if letters[:1] != ["B"]:
        return None
    return (0, letters.index("T")) if "T" in letters else (0, 1)


def _token(model: Model, position: tuple[int, int] | None) -> int | None:
    if position is None or model.config.features:
        return None
    return int(model.read(inputs_name(model.config))[position])


def first_nonfinite(array: Array) -> tuple[int, ...] | None:
    """Where an array of floating-point numbers first holds NaN or infinity."""
    if array.dtype.kind not in "fV":  # NumPy has bfloat16 as a type that it does not know
        return None
    row = max(1, array.size // max(1, len(array)))
    rows = max(1, PIECE // row)
    for start in range(0, len(array), rows):
        wrong = ~np.isfinite(array[start : start + rows])
        if wrong.any():
            first, *rest = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
            return (start + first, *rest)
    return None


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))


class Spikes:
    """Tells when the loss leaps out of what it was over the last `window` updates."""

    def __init__(self, window: int = 50, factor: float = 8.0) -> None:
        self._window, self._factor = window, factor
        self._recent: deque[float] = deque(maxlen=window)
        self._start: float | None = None  # the loss at the beginning: what counts as much depends on it
        self._calm = window  # updates since the loss was last too high

    def state(self) -> dict[str, Any]:
        return {"recent": [*self._recent], "start": self._start, "calm": self._calm}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._start, self._calm = state["start"], state["calm"]

    def see(self, step: int, loss: float) -> str | None:
        """A sentence when a spike begins. A spike lasts until half a window has been calm; the first window is."""
        if not isfinite(loss):
            return None  # not a spike but the end
        report = None
        if len(self._recent) == self._window:
            usual = median(self._recent)
            self._start = usual if self._start is None else self._start
            spread = DEVIATION * median(abs(each - usual) for each in self._recent)
            # A quiet stretch has next to no spread, and near zero one wrong answer in a batch is a leap.
            high = loss > usual + max(self._factor * spread, 0.1 * abs(usual), 0.1 * abs(self._start))
            if high and self._calm >= self._window // 2:
                before = f"over the last {self._window} updates it was about {usual:.4g} ± {spread:.2g}"
                report = f"the loss leapt to {loss:.4g} at step {step}; {before}."
            self._calm = 0 if high else self._calm + 1
        self._recent.append(loss)
        return report


def usual_norms(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each layer's gradient norm."""
    layers = dict.fromkeys(layer for norms in history for layer in norms)
    return {layer: median(norms[layer] for norms in history if layer in norms) for layer in layers}


def norms_by_layer(norms: Mapping[str, float], usual: Mapping[str, float] | None = None) -> str:
    """Each layer's gradient norm beside its usual one, the one that grew most first."""
    usual = usual or {}

    def growth(layer: str) -> float:
        return norms[layer] / usual[layer] if usual.get(layer) else 0.0

    parts = []
    for layer in sorted(norms, key=growth, reverse=True):
        known = f" (usually {usual[layer]:.3g}, {growth(layer):.1f}×)" if usual.get(layer) else ""
        parts.append(f"{layer} {norms[layer]:.3g}{known}")
    return f"Gradient norms by layer: {', '.join(parts)}."
