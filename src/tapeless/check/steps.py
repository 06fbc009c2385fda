"""Whole steps of a model: updates, clipping, zeroing and adding up gradients, each beside a plain statement of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import fsum, sqrt
from typing import Any

import numpy as np

from tapeless.check.finding import Finding, difference
from tapeless.model import Model
from tapeless.models.config import CHOICES, Optimizer
from tapeless.ops.contract import Array

Tensors = dict[str, Array]
FIELDS: dict[str, Any] = {
    "layers": 1, "channels": 4, "heads": 2, "vocab": 6, "context": 4, "hidden": 5, "chunk": 3, "time": 3,
    "attention_bias": False,  # a key's has no gradient but rounding
}  # fmt: skip
RATES = (0.03, 0.01, 0.02)


class PlainOptimizer:
    """SGD, momentum, Adam and AdamW tensor by tensor, as their papers have them, with clipping by the global norm."""

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Array]) -> None:
        self.optimizer = optimizer
        self.weights = {name: weight.copy() for name, weight in weights.items()}
        self.m, self.v = ({name: np.zeros(w.shape) for name, w in weights.items()} for _ in range(2))
        self.step = 0

    def update(self, gradients: Mapping[str, Array], lr: float, clip: float | None) -> float:
        """Returns the norm before clipping."""
        norm = sqrt(fsum(value**2 for gradient in gradients.values() for value in gradient.reshape(-1)))
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        self.step += 1
        for name, gradient in gradients.items():
            self.weights[name] = self._moved(name, factor * gradient, lr)
        return norm

    def _moved(self, name: str, g: Array, lr: float) -> Array:
        o, w, t = self.optimizer, self.weights[name], self.step
        if o.name == "sgd":
            return w - lr * g
        if o.name == "momentum":
            self.m[name] = o.momentum * self.m[name] + g
            return w - lr * self.m[name]
        self.m[name] = o.beta1 * self.m[name] + (1 - o.beta1) * g
        self.v[name] = o.beta2 * self.v[name] + (1 - o.beta2) * g**2
        mean, size = self.m[name] / (1 - o.beta1**t), self.v[name] / (1 - o.beta2**t)
        kept = 1 - lr * o.decay if o.name == "adamw" and decays(name, w) else 1.0
        return kept * w - lr * mean / (np.sqrt(size) + o.eps)


def decays(name: str, weight: Array) -> bool:
    """Matrices do; norms, biases and positions do not."""
    return weight.ndim == 2 and name != "positions.weight"


def small_model(optimizer: Optimizer | str | None, batch: int = 2, **fields: Any) -> Model:
    made = FIELDS | fields
    return Model("gpt2-4x256", batch=batch, backend="reference", optimizer=optimizer, seed=3, **made)


def small_batch(batch: int, seed: int, ignored: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    inputs, targets = (rng.integers(0, FIELDS["vocab"], (batch, FIELDS["time"])) for _ in range(2))
    targets.reshape(-1)[:ignored] = -1
    return inputs, targets


def first_difference(found: Mapping[str, Array], true: Mapping[str, Array]) -> str | None:
    for name, array in true.items():
        off = difference(found[name], array)
        if off:
            return f"{name} {off}"
    return None


def check_steps() -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("zero in model", _zeroed),
        ("accumulation in model", _accumulated),
        ("evaluation in model", _evaluated),
        ("update in model", _updated),
    )
    for place, check in checks:
        try:
            for detail in check():
                yield Finding(place, "steps", detail)
        except Exception as error:  # a step that cannot be made is wrong, too
            yield Finding(place, "steps", f"raises {type(error).__name__}: {error}")


def _zeroed() -> Iterator[str]:
    """The gradient of a batch does not depend on what was computed before it."""
    model, fresh = small_model(None), small_model(None)
    model.forward_backward(*small_batch(2, seed=1))
    for each in (model, fresh):
        each.forward_backward(*small_batch(2, seed=2))
    found = first_difference(model.grads, fresh.grads)
    if found:
        yield f"after another batch the gradient of {found}"


def _accumulated() -> Iterator[str]:
    """Batches with different numbers of targets, added up, are one big batch; also where one has no target at all."""
    parts = [small_batch(2, seed, ignored) for seed, ignored in ((1, 0), (2, 4), (3, 6))]
    small, big = small_model(None), small_model(None, batch=6)
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    count = int((targets >= 0).sum())
    true = big.forward_backward(inputs, targets, count=count)
    shares = [small.forward_backward(*part, accumulate=n > 0, count=count) for n, part in enumerate(parts)]
    found = first_difference(small.grads, big.grads) or difference(np.array([sum(shares)]), np.array([true]))
    if found:
        yield f"three batches added up are not one batch of all: {found}"


def _evaluated() -> Iterator[str]:
    """Reading a model out changes nothing that training goes on from."""
    model = small_model("adamw")
    inputs, targets = small_batch(2, seed=1)
    model.forward_backward(inputs, targets)
    kept = [{name: array.copy() for name, array in part.items()} for part in (model.params, model.grads)]
    model.loss(*small_batch(2, seed=2))
    model.logits(inputs)
    for before, after in zip(kept, (model.params, model.grads), strict=True):
        found = first_difference(after, before)
        if found:
            yield f"after an evaluation {found}"


def _updated() -> Iterator[str]:
    """Three updates of every optimizer at different rates, without clipping, with a limit that bites and one that does
    not; weights change by them alone."""
    for name in CHOICES["optimizer"]:
        for clip in (None, 0.5, 1e6):
            optimizer = Optimizer(name, decay=0.1)
            model = small_model(optimizer)
            own = PlainOptimizer(optimizer, model.params)
            for number, lr in enumerate(RATES):
                model.forward_backward(*small_batch(2, seed=number))
                true = own.update({key: gradient.copy() for key, gradient in model.grads.items()}, lr, clip)
                norm = model.update(lr, clip=clip)
                found = first_difference(model.params, own.weights) or difference(np.array([norm]), np.array([true]))
                if found:
                    yield f"{name}, clip={clip}, update {number + 1}: {found}"
                    return
