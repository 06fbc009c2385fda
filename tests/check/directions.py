"""Gradients of models that are too large to be gone through element by element, by complex step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tapeless.check.complex_step import STEP, TensorError, loss_of, paired
from tapeless.check.configurations import Configuration


def check_directions(configuration: Configuration) -> Iterator[TensorError]:
    """One random direction per weight: for models too large to go through element by element."""
    model, probe, inputs, targets = paired(configuration)
    model.forward_backward(inputs, targets)
    rng = np.random.default_rng(configuration.seed)
    for name, gradient in model.grads.items():
        weight = probe.params[name]
        direction = rng.normal(size=weight.shape)
        weight.imag[...] = STEP * direction
        true = complex(loss_of(probe, inputs, targets)).imag / STEP
        weight.imag[...] = 0
        # A random direction sees a gradient of this size on average, whatever the cancellation within it.
        scale = max(float(np.linalg.norm(gradient)), abs(true))
        error = abs(float(np.vdot(gradient, direction)) - true)
        yield TensorError(configuration.name, name, error / scale if scale else error, weight.size)
