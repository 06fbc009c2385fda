"""Whole steps of a model: updates, clipping, zeroing and adding up gradients, each beside a plain statement of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import fsum, sqrt
from typing import Any

import numpy as np

from tapeless.check.definitions import nearly_orthogonal
from tapeless.check.finding import EXACT, Finding, difference
from tapeless.errors import NonFiniteError
from tapeless.model import Model, Stepped
from tapeless.models.config import CHOICES, Architecture, Optimizer
from tapeless.ops.contract import Array
from tapeless.train.metrics import gradient_norms, update_ratios

Tensors = dict[str, Array]
FIELDS: dict[str, Any] = {
    "layers": 1,
    "channels": 4,
    "heads": 2,
    "vocab": 6,
    "context": 4,
    "hidden": 5,
    "chunk": 3,
    "time": 3,
    "attention_bias": False,  # a key's has no gradient but rounding
}
RATES = (0.03, 0.01, 0.02)
DIFFERENCE = 1e-10  # of two weights that are nearly the same, beside their difference


class PlainOptimizer:
    """SGD, momentum, Adam, AdamW and Muon tensor by tensor, as their papers have them, with clipping by the global
    norm."""

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Array], config: Architecture) -> None:
        self.optimizer, self.config = optimizer, config
        self.weights = {name: weight.copy() for name, weight in weights.items()}
        self.m, self.v = ({name: np.zeros(w.shape) for name, w in weights.items()} for _ in range(2))
        self.step = 0

    def update(self, gradients: Mapping[str, Array], lr: float, clip: float | None) -> float:
        """Returns the norm before clipping."""
        norm = length(gradients.values())
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
            self.m[name] = o.inertia * self.m[name] + g
            return w - lr * self.m[name]
        if o.name == "muon" and (widths := matrix_widths(self.config, name)):
            mu = o.inertia
            self.m[name] = mu * self.m[name] + (1 - mu) * g
            ahead = np.split(mu * self.m[name] + (1 - mu) * g, np.cumsum(widths)[:-1], axis=1)
            parts = [0.2 * sqrt(max(x.shape)) * nearly_orthogonal(x) for x in ahead]
            return (1 - lr * o.decay) * w - lr * np.hstack(parts)
        self.m[name] = o.beta1 * self.m[name] + (1 - o.beta1) * g
        self.v[name] = o.beta2 * self.v[name] + (1 - o.beta2) * g**2
        mean, size = self.m[name] / (1 - o.beta1**t), self.v[name] / (1 - o.beta2**t)
        kept = 1 - lr * o.decay if o.name in ("adamw", "muon") and decays(name, w) else 1.0
        return kept * w - lr * mean / (np.sqrt(size) + o.eps)


def length(arrays: Iterable[Array]) -> float:
    return sqrt(fsum(value**2 for array in arrays for value in array.reshape(-1).tolist()))


def by_section(model: Model, arrays: Mapping[str, Array]) -> dict[str, float]:
    """The norm of what belongs to each section: a weight belongs to that of the first call that reads it."""
    sections: dict[str, list[str]] = {}
    for call in reversed(model.program.phase("forward", "backward")):
        for name in {argument.view.buffer.name for argument in call.reads} & set(arrays):
            sections = {section: [one for one in names if one != name] for section, names in sections.items()}
            sections.setdefault(call.section, []).append(name)
    return {section: length(arrays[name] for name in names) for section, names in sections.items()}


def decays(name: str, weight: Array) -> bool:
    """Matrices do; norms, biases and positions do not."""
    return weight.ndim == 2 and name != "positions.weight"


def matrix_widths(config: Architecture, name: str) -> tuple[int, ...]:
    """Of the matrices side by side in a weight of a hidden layer; of embeddings, the head and all vectors none."""
    queries, keys = (heads * config.head_channels for heads in (config.heads, config.key_heads))
    widths = {
        "attn.qkv.weight": (queries, keys, keys),
        "attn.proj.weight": (config.channels,),
        "mlp.gate_up.weight": (config.width, config.width),
        "mlp.up.weight": (config.width,),
        "mlp.down.weight": (config.channels,),
    }
    return next((found for ending, found in widths.items() if name.endswith(ending)), ())


def small_model(optimizer: Optimizer | str | None, batch: int = 2, **fields: Any) -> Model:
    made = FIELDS | fields
    return Model("gpt2-4x256", batch=batch, optimizer=optimizer, seed=3, **{"backend": "reference", **made})


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
        ("draws in model", _dropped),
        ("update in model", _updated),
        ("update in model", _measured),
        ("update in model", _refused),
        ("step in model", _stepped),
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


def _dropped() -> Iterator[str]:
    """Each batch draws random numbers of its own, also where several are added up, and set back they come again; an
    evaluation draws none. On the cpu too, where a call is bound once and for all."""
    batch = small_batch(2, seed=1)
    for backend in ("reference", "cpu"):
        model, whole = (small_model(None, dropout=rate, backend=backend) for rate in (0.5, 0.0))
        losses = [model.forward_backward(*batch, accumulate=number > 0) for number in range(4)]
        if len(set(losses)) < len(losses):
            yield f"{backend}: of four batches some draw the same random numbers: their losses are {losses}"
        if model.loss(*batch) != whole.loss(*batch) or model.draws != len(losses):
            yield f"{backend}: an evaluation drops, or counts as drawn: {model.draws} for {len(losses)} batches"
        model.draws = 1
        again = model.forward_backward(*batch)
        if again != losses[1]:
            yield f"{backend}: the loss is {losses[1]}, and with the same random numbers {again}"


def _updated() -> Iterator[str]:
    """Three updates of every optimizer at different rates, without clipping, with a limit that bites and one that does
    not; weights change by them alone."""
    for name in CHOICES["optimizer"]:
        for clip in (None, 0.5, 1e6):
            optimizer = Optimizer(name, decay=0.1)
            model = small_model(optimizer)
            own = PlainOptimizer(optimizer, model.params, model.config)
            for number, lr in enumerate(RATES):
                model.forward_backward(*small_batch(2, seed=number))
                true = own.update({key: gradient.copy() for key, gradient in model.grads.items()}, lr, clip)
                norm = model.update(lr, clip=clip)
                found = first_difference(model.params, own.weights) or difference(np.array([norm]), np.array([true]))
                if found:
                    yield f"{name}, clip={clip}, update {number + 1}: {found}"
                    return


def _measured() -> Iterator[str]:
    """The norms of the gradients by section, and how far each was moved beside how large it was before."""
    for name in CHOICES["optimizer"]:
        model = small_model(Optimizer(name, decay=0.1))
        for number, lr in enumerate(RATES):
            model.forward_backward(*small_batch(2, seed=number))
            before = {key: weight.copy() for key, weight in model.params.items()}
            model.update(lr, clip=0.5)
            change = {key: model.params[key] - weight for key, weight in before.items()}
            moved, size = by_section(model, change), by_section(model, before)
            for what, found, true, allowed in (
                ("gradients", gradient_norms(model), by_section(model, model.grads), EXACT),
                ("movement", update_ratios(model), {key: moved[key] / size[key] for key in size}, DIFFERENCE),
            ):
                if found.keys() != true.keys() or any(
                    abs(found[key] - true[key]) > allowed * true[key] for key in true
                ):
                    yield f"{name}, update {number + 1}: by section, the {what} are {found}, not {true}"
                    return


def _refused() -> Iterator[str]:
    """An update by what is not finite, or too large to be squared, or for such a loss, changes nothing and is said."""
    for name in CHOICES["optimizer"]:
        for value, clip in ((np.nan, None), (np.inf, 0.5), (1e30, None)):
            model = small_model(name, precision="float32")
            model.step(*small_batch(2, seed=0), lr=0.1)
            model.forward_backward(*small_batch(2, seed=1))
            model.grads["norm.weight"][1] = value
            yield from _unmoved(
                model, f"{name}, clip={clip}, a gradient of {value}", partial(model.update, 0.1, clip=clip)
            )
        model.update(0.1, clip=0.5)  # the last, clipped, can be squared
    model = small_model("sgd", loss="squared_error")
    for weight in model.params.values():
        weight *= 1e155  # whose distance can be told, and not be squared
    yield from _unmoved(model, "an infinite loss", partial(model.step, *small_batch(2, seed=1), lr=1e-300, clip=1.0))


def _unmoved(model: Model, what: str, act: Callable[[], Any]) -> Iterator[str]:
    kept, steps = {key: array.copy() for key, array in {**model.params, **model.state}.items()}, model.steps
    with np.errstate(all="ignore"):
        try:
            made = act()
            refused = isinstance(made, Stepped) and not made.finite
        except NonFiniteError:
            refused = True
    if not refused:
        yield f"{what} is not refused"
    found = first_difference({**model.params, **model.state}, kept)
    if found or model.steps != steps:
        yield f"{what} is refused, but {found or f'{model.steps} steps are counted, not {steps}'}"


def _stepped() -> Iterator[str]:
    """One list from the first call to the last is forward, backward and update one after the other."""
    for accumulate in (False, True):
        whole, parts = small_model("adamw"), small_model("adamw")
        for number, lr in enumerate(RATES):
            batch = small_batch(2, seed=number)
            loss = parts.forward_backward(*batch, accumulate=accumulate, count=7.0)
            norm = parts.update(lr, clip=0.5)
            made = whole.step(*batch, lr=lr, clip=0.5, accumulate=accumulate, count=7.0)
            if (made.loss, made.norm, made.finite, whole.steps) != (loss, norm, True, number + 1):
                yield f"a step with accumulate={accumulate} says {made.loss}, {made.norm}, not {loss}, {norm}"
            found = first_difference(whole.params, parts.params)
            if found:
                yield f"after a step with accumulate={accumulate}, {found}"
                return
