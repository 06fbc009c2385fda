"""What a tiny change of one weight does, to all digits: the complex step.

For a weight w, Im f(w + ih) / h is f′(w) to the last digits of float64 when h is tiny, whatever f is: the loss, which
gives the gradient a second time and by another way than the backward, or every score, which says which words a change
of this one weight makes likelier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tapeless.check.complex_step import STEP
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tracing.shares import checked_element
from tapeless.tracing.update import Update


@dataclass(frozen=True)
class Digits:
    """One gradient, three ways."""

    engine: float  # as it trains, in its own precision
    backward: float  # the same backward in float64
    complex_step: float  # no backward at all


@dataclass(frozen=True)
class Push:
    """What a change does to the words that may stand at one position: the most likely before, and what changes."""

    position: int
    before: Array  # the probability of every word
    alone: Array  # how the logarithm of each changes where this weight alone is moved, to first order
    update: Array  # the probability of every word after the whole update


class Probe:
    """Twins of an update's model on the reference, in float64 and complex128, with its weights as they were before."""

    def __init__(self, update: Update) -> None:
        self.update = update

    @cached_property
    def _exact(self) -> Model:
        return self._twin("float64")

    @cached_property
    def _complex(self) -> Model:
        return self._twin("complex128")

    @cached_property
    def _gradients(self) -> dict[str, Array]:
        self._losses(self._exact)
        return {name: np.array(array) for name, array in self._exact.grads.items()}

    def digits(self, name: str, index: Sequence[int]) -> Digits:
        """The gradient of one element, as the engine has it, in float64, and by complex step."""
        place = checked_element(self.update.model, name, index)
        backward = float(self._gradients[name][place])
        with _moved(self._complex, name, place) as probe:
            derivative = complex(self._losses(probe)).imag / STEP
        return Digits(float(self.update.gradients[name][place]), backward, derivative)

    def push(self, name: str, index: Sequence[int], sequence: Any) -> Push:
        """Of one sequence (T): at the position whose words the change of this weight moves the most."""
        place, tokens = checked_element(self.update.model, name, index), np.asarray(sequence)[None]
        exact = self._exact
        with _moved(self._complex, name, place) as probe:
            slopes = _rows(probe.logits(tokens)).imag / STEP
        before = _log_softmax(_rows(exact.logits(tokens)))
        likely = np.exp(before)
        change = float(self.update.change(name)[place])
        alone = change * (slopes - (likely * slopes).sum(axis=1, keepdims=True))
        position = int(np.argmax(np.abs(alone * likely).sum(axis=1)))
        try:
            for each, array in self.update.after.items():
                exact.write(each, array)
            after = np.exp(_log_softmax(_rows(exact.logits(tokens))))
        finally:
            for each in self.update.after:
                exact.write(each, self.update.before[each])
        at = position if len(before) > 1 else tokens.shape[1] - 1
        return Push(at, likely[position], alone[position], after[position])

    def exact(self) -> Model:
        """Another twin in float64, for somebody who writes to what it holds: the one that is asked for digits must keep
        constants that no float32 has rounded."""
        return self._twin("float64")

    def _twin(self, precision: str) -> Model:
        model = self.update.model
        made = Model(
            model.preset,
            batch=model.batch,
            time=model.time,
            backend="reference",
            precision=precision,
            optimizer=None,
            class_weights=model.class_weights,
        )
        for name, array in self.update.before.items():
            made.write(name, array)
        if model.preset.dropout:
            made.write("dropout.seed", model.read("dropout.seed"))
        return made

    def _losses(self, twin: Model) -> Any:
        """Of all batches of the update, as a step sees them. Where nothing drops, one batch needs no backward."""
        update = self.update
        if len(update.batches) == 1 and not twin.preset.dropout and twin is self._complex:
            inputs, targets = update.batches[0]
            return twin.loss(inputs, targets) * (twin.weigh(targets) / update.count)
        twin.draws = update.draws
        return sum(
            twin.forward_backward(*batch, accumulate=number > 0, count=update.count)
            for number, batch in enumerate(update.batches)
        )


@contextmanager
def _moved(twin: Model, name: str, place: tuple[int, ...]) -> Iterator[Model]:
    """The twin with one weight moved by a tiny imaginary step, and moved back however that ends."""
    kept = twin.params[name][place]
    twin.params[name][place] = kept + 1j * STEP
    try:
        yield twin
    finally:
        twin.params[name][place] = kept


def _rows(scores: Array) -> Array:
    """Of one sequence, position by position; a model that answers once has one."""
    return scores.reshape(-1, scores.shape[-1])


def _log_softmax(scores: Array) -> Array:
    shifted = scores.real - scores.real.max(axis=-1, keepdims=True)
    logarithms: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logarithms
