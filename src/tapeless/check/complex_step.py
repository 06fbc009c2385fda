"""Proof of gradients by complex step.

For an analytic f and a tiny h, f(x + ih) = f(x) + ih f′(x) + O(h²), so f′(x) = Im f(x + ih) / h with an error
of h² and, unlike a difference of two nearly equal losses, no cancellation. With h = 1e-30 the result is right
to the last digits of float64. The forward runs in complex128; the gradient under test comes from a model of
its own in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from tapeless.check.configurations import Configuration
from tapeless.check.examples import dims_of
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.ops import OPS
from tapeless.ops.contract import Array, Signature

STEP = 1e-30
KINK = 1e-4  # no ReLU input of a checked model is nearer to zero than this


@dataclass(frozen=True)
class TensorError:
    """How far a tensor's gradient is from the complex step, relative to its largest element."""

    configuration: str
    tensor: str
    error: float
    elements: int

    @property
    def ok(self) -> bool:
        return self.error <= TOLERANCES["complex step"]  # False for NaN too

    @property
    def size(self) -> float:
        """The error, to be sorted by: NaN is as wrong as can be."""
        return self.error if self.error == self.error else inf


def relative_error(found: Array, true: Array) -> float:
    """Largest difference over largest element. Two tensors of zeros agree; NaN agrees with nothing."""
    scale = max(float(np.abs(true).max()), float(np.abs(found).max()))
    difference = float(np.abs(found - true).max())
    return difference / scale if scale else difference


def check_model(configuration: Configuration) -> Iterator[TensorError]:
    """Every element of every weight."""
    model, probe, inputs, targets = paired(configuration)
    model.forward_backward(inputs, targets)
    for name, gradient in model.grads.items():
        weight = probe.params[name]
        true = np.empty(weight.size)
        flat = weight.reshape(-1)
        for index in range(weight.size):
            kept = flat[index]
            flat[index] = kept + 1j * STEP
            true[index] = _imaginary(loss_of(probe, inputs, targets)) / STEP
            flat[index] = kept
        error = relative_error(gradient.reshape(-1), true)
        yield TensorError(configuration.name, name, error, weight.size)


def paired(configuration: Configuration) -> tuple[Model, Model, Array, Array]:
    """A float64 model, a complex twin with the same weights, and a batch."""
    for seed in range(configuration.seed, configuration.seed + 100):
        rng = np.random.default_rng(seed)
        model = configuration.model("float64")
        inputs, targets = configuration.batch_of(rng, model)
        configuration.scramble(rng, model)
        if _distance_to_kink(model, inputs, targets) > KINK:
            model.draws = 0
            probe = configuration.model("complex128")
            for name, weight in model.params.items():
                probe.params[name][...] = weight
            return model, probe, inputs, targets
    raise TapelessError(f"{configuration.name}: no seed keeps every ReLU away from its kink; use a smaller model.")


def loss_of(probe: Model, inputs: Array, targets: Array) -> Any:
    """Of an evaluation; what drops at random is the function that a step sees, with the same random numbers each
    time."""
    if not probe.preset.dropout:
        return probe.loss(inputs, targets)
    probe.draws = 0
    return probe.forward_backward(inputs, targets)


def _distance_to_kink(model: Model, inputs: Array, targets: Array) -> float:
    if model.config.activation != "relu":
        return np.inf
    return min(
        float(np.abs(values["x"]).min())
        for call, values in model.trace(inputs, targets)
        if call.title == "relu.forward"
    )


def _imaginary(loss: Any) -> float:
    return complex(loss).imag


def op_derivative(name: str, example: dict[str, Any], argument: str, weights: dict[str, Any]) -> Array:
    """Of Σ weights·outputs by every element of one argument, each moved by itself."""
    true = np.empty(example[argument].size)
    for index in range(true.size):
        moved = example[argument].astype(complex)
        moved.reshape(-1)[index] += 1j * STEP
        outputs = run_forward(name, example | {argument: moved}, np.complex128)
        true[index] = _imaginary(sum((weight * outputs[output]).sum() for output, weight in weights.items())) / STEP
    return true


def run_forward(name: str, example: dict[str, Any], dtype: Any) -> dict[str, Array]:
    """The outputs of an op on an example; a tuple in the example is the shape of an output."""
    op = OPS[name]
    signature: Signature = op.SPEC.forward
    asked = [output for output in signature.writes if output in example or output not in signature.optional]
    outputs = {output: _empty(name, output, example, dtype) for output in asked}
    for output in (output for output in signature.updates if output in asked):
        outputs[output][...] = example[output]
    op.forward(
        *(outputs.get(output) for output in signature.writes),
        *(example.get(read) for read in signature.reads),
        *(example[scalar] for scalar in signature.scalars),
    )
    return outputs


def _empty(name: str, argument: str, example: dict[str, Any], dtype: Any) -> Array:
    """An output filled with NaN, its shape taken from the example and the Spec."""
    spec, given = OPS[name].SPEC, example.get(argument)
    if given is not None:
        shape = given if isinstance(given, tuple) else given.shape
    else:
        dims = dims_of(name, example)
        shape = tuple(int(x) if x.isdigit() else dims[x] for x in spec.letters(argument))
    return np.full(shape, np.nan, spec.dtype(argument, dtype))
