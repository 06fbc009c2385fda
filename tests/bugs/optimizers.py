"""Bugs of the update: clipping, decay, moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.models import transformer
from tapeless.ops.contract import Array
from tapeless.program.call import MEMBER_ALIGNMENT
from tests.bugs.planting import Bug, Plant, around, forward, replaced

_update = Model.update


def _number(a: Any) -> int:
    """Of the update that is being made, from 1."""
    return int(a.step[0]) + 1


def _moments(a: Any) -> tuple[Array, Array]:
    g = a.scale[0] * a.gradients
    return a.beta1 * a.m + (1 - a.beta1) * g, a.beta2 * a.v + (1 - a.beta2) * g * g


def _decayed(a: Any, factor: float | None = None) -> Array:
    weights: Array = a.weights.copy()
    for start, stop in a.decayed:
        weights[start:stop] *= 1 - (a.lr[0] * a.decay if factor is None else factor)
    return weights


def _adam(step: Any) -> Plant:
    """Weights from step(a, m, v): what the learning rate is multiplied with."""
    return forward("adamw", weights=lambda a: _decayed(a) - a.lr[0] * step(a, *_moments(a)))


def _corrected(a: Any, m: Array, v: Array, steps: int) -> Array:
    mean: Array = m / (1 - a.beta1**steps) / (np.sqrt(v / (1 - a.beta2**steps)) + a.eps)
    return mean


def _eps_in_root(a: Any, m: Array, v: Array) -> Any:
    t = _number(a)
    return m / (1 - a.beta1**t) / np.sqrt(v / (1 - a.beta2**t) + a.eps)


def _eps_before_correction(a: Any, m: Array, v: Array) -> Any:
    t = _number(a)
    return m / (1 - a.beta1**t) * np.sqrt(1 - a.beta2**t) / (np.sqrt(v) + a.eps)


def _through_the_gradient(a: Any) -> Any:
    pull = np.zeros_like(a.weights)
    for start, stop in a.decayed:
        pull[start:stop] = a.decay * a.weights[start:stop]
    g = a.scale[0] * a.gradients + pull
    m, v = a.beta1 * a.m + (1 - a.beta1) * g, a.beta2 * a.v + (1 - a.beta2) * g * g
    return a.weights - a.lr[0] * _corrected(a, m, v, _number(a))


def _unscaled_square(a: Any) -> Any:
    return a.beta2 * a.v + (1 - a.beta2) * a.gradients * a.gradients


def _clipped_afterwards(self: Model, lr: float, *, clip: float | None = None) -> float:
    """The scale that the update reads is that of the step before."""
    self.prepare_update(lr, clip)
    self.engine.run("update")
    return self._ran("clip").norm


def _clipped_by_tensor(self: Model, lr: float, *, clip: float | None = None) -> float:
    for gradient in self.grads.values():
        norm = float(np.linalg.norm(gradient))
        if clip is not None and norm > clip:
            gradient *= clip / norm
    return _update(self, lr, clip=None)


def _clipped_by_value(self: Model, lr: float, *, clip: float | None = None) -> float:
    for gradient in self.grads.values():
        np.minimum(gradient, np.inf if clip is None else clip / 10, out=gradient)
    return _update(self, lr, clip=None)


def _steps_not_counted(self: Model, lr: float, clip: float | None) -> None:
    _prepare(self, lr, clip)
    self.steps = 0


_prepare = Model.prepare_update


def _lengths(a: Any, values: Array) -> list[float]:
    return [float(np.linalg.norm(part)) for part in np.split(values, a.sections[1:])]


def _after(a: Any) -> list[float]:
    return _lengths(a, _decayed(a) - a.lr[0] * _corrected(a, *_moments(a), _number(a)))


def _next_section(right: Any, weights: Any) -> dict[str, int]:
    """The first weights of a section are taken for the last of the one before."""
    return {name: start and start + MEMBER_ALIGNMENT for name, start in right(weights).items()}


def _everything(region: Any) -> tuple[tuple[int, int], ...]:
    return ((0, region.shape[0]),)


def _all_but_last(region: Any) -> tuple[tuple[int, int], ...]:
    return _spans(region)[:-1]


_spans = transformer._spans


BUGS = (
    Bug(
        "adam-step-off-by-one",
        "adamw",
        "The bias correction counts one step too many.",
        "The first updates are too small by half.",
        _adam(lambda a, m, v: _corrected(a, m, v, _number(a) + 1)),
    ),
    Bug(
        "adam-bias-correction-missing",
        "adamw",
        "m and v are used as they are.",
        "The first updates are too large; fine-tuning is unstable.",
        _adam(lambda a, m, v: m / (np.sqrt(v) + a.eps)),
        public="OLMo-core, pull request 317: a step that was never counted; and the optimizer BERT was released with.",
    ),
    Bug(
        "adam-correction-multiplied",
        "adamw",
        "m and v are multiplied by 1 − βᵗ instead of divided.",
        "Adam learns slower than plain SGD.",
        _adam(lambda a, m, v: m * (1 - a.beta1 ** _number(a)) / (np.sqrt(v * (1 - a.beta2 ** _number(a))) + a.eps)),
        public="convnetjs, pull request 70.",
    ),
    Bug(
        "adam-eps-in-root",
        "adamw",
        "ε is added under the root.",
        "Small gradients move weights far less than they should.",
        _adam(_eps_in_root),
    ),
    Bug(
        "adam-eps-before-correction",
        "adamw",
        "ε is added before the bias correction of v.",
        "Early updates differ in the last digits; with a large ε clearly.",
        _adam(_eps_before_correction),
    ),
    Bug(
        "adam-v-of-sizes",
        "adamw",
        "v averages the size of g instead of its square.",
        "Updates of another size; the loss falls anyway.",
        forward("adamw", v=lambda a: a.beta2 * a.v + (1 - a.beta2) * np.abs(a.scale[0] * a.gradients)),
    ),
    Bug(
        "adam-v-not-clipped",
        "adamw",
        "m sees the clipped gradient, v the one before clipping.",
        "After a spike nothing moves for a thousand steps.",
        forward("adamw", v=_unscaled_square),
    ),
    Bug(
        "adam-m-forgotten",
        "adamw",
        "m starts anew each step.",
        "Noisier, without the momentum one believes to have.",
        forward("adamw", m=lambda a: (1 - a.beta1) * a.scale[0] * a.gradients),
    ),
    Bug(
        "decay-through-the-gradient",
        "adamw",
        "Decay is added to the gradient (L2) instead of applied to the weights.",
        "Weights with large gradients hardly decay.",
        forward("adamw", weights=_through_the_gradient),
        public="What 'Decoupled weight decay regularization' (Loshchilov and Hutter) found in most libraries.",
    ),
    Bug(
        "decay-without-learning-rate",
        "adamw",
        "Weights shrink by `decay` instead of lr·decay.",
        "All matrices are gone after a few hundred steps.",
        forward("adamw", weights=lambda a: _decayed(a, a.decay) - a.lr[0] * _corrected(a, *_moments(a), _number(a))),
    ),
    Bug(
        "decay-on-norms-and-biases",
        "adamw in transformer",
        "Everything decays, norms, biases and positions too.",
        "A slightly worse loss.",
        replaced(transformer, "_spans", _everything),
        public="transformers, issue 4360: LayerNorm was not excluded in its TensorFlow optimizer.",
    ),
    Bug(
        "decay-misses-a-matrix",
        "adamw in transformer",
        "The last matrix does not decay.",
        "One tensor grows more than the others.",
        replaced(transformer, "_spans", _all_but_last),
    ),
    Bug(
        "steps-not-counted",
        "update in model",
        "The step counter is set back after each update.",
        "Every update is treated as the first.",
        replaced(Model, "prepare_update", _steps_not_counted),
    ),
    Bug(
        "update-not-predicated",
        "adamw",
        "The update does not look at `finite`.",
        "One overflow, and every weight is NaN.",
        _adam(lambda a, m, v: _corrected(a, m, v, _number(a))),
    ),
    Bug(
        "moments-not-predicated",
        "adamw",
        "Where the step is not finite the weights stay, but its gradients still go into m.",
        "The training goes on, and is NaN one step later.",
        forward("adamw", m=lambda a: _moments(a)[0]),
    ),
    Bug(
        "refused-step-counted",
        "adamw",
        "The step number advances although nothing was updated.",
        "A training with refused steps does not go on as one without them.",
        forward("adamw", step=lambda a: a.step + 1),
        public="PyTorch's GradScaler skips the optimizer and leaves schedulers to be stepped regardless (its warning).",
    ),
    Bug(
        "moved-after-instead-of-before",
        "adamw",
        "Movement is set beside the weights after the update.",
        "A first step that is far too large looks like an ordinary one.",
        forward("adamw", norms=_after),
    ),
    Bug(
        "movement-without-decay",
        "adamw",
        "How far weights moved leaves out the decay.",
        "A decay that eats the weights does not show.",
        forward("adamw", moved=lambda a: _lengths(a, a.lr[0] * _corrected(a, *_moments(a), _number(a)))),
    ),
    Bug(
        "norms-of-the-wrong-section",
        "global_norm in transformer",
        "The weights of a section are counted from the wrong place.",
        "The doctor suspects the wrong layer.",
        around(transformer, "sections", _next_section),
    ),
    Bug(
        "sgd-not-predicated",
        "sgd",
        "The update does not look at `finite`.",
        "One overflow, and every weight is NaN.",
        forward("sgd", weights=lambda a: a.weights - a.lr[0] * a.scale[0] * a.gradients),
    ),
    Bug(
        "momentum-dampened",
        "momentum",
        "m averages gradients instead of adding them up.",
        "Learns at a tenth of the rate that others get from the same settings.",
        forward("momentum", m=lambda a: a.momentum * a.m + (1 - a.momentum) * a.scale[0] * a.gradients),
    ),
    Bug(
        "momentum-before-the-gradient",
        "momentum",
        "The weights step along the m of the step before.",
        "One step late.",
        forward("momentum", weights=lambda a: a.weights - a.lr[0] * a.m),
    ),
    Bug(
        "sgd-ignores-clip",
        "sgd",
        "The clip factor is computed and not used.",
        "Spikes go through although clipping is on.",
        forward("sgd", weights=lambda a: a.weights - a.lr[0] * a.gradients),
    ),
    Bug(
        "clip-always-scales",
        "clip",
        "The gradient is brought to the limit also where it is below.",
        "Learning never settles: each step is as long as the first.",
        forward("clip", scale=lambda a: a.limit / np.maximum(a.norm, 1e-300)),
    ),
    Bug(
        "clip-epsilon",
        "clip",
        "limit / (norm + 1e-6).",
        "Differs in the seventh digit.",
        forward("clip", scale=lambda a: np.minimum(1.0, a.limit / (a.norm + 1e-6))),
        public="torch's clip_grad_norm_ does it on purpose.",
    ),
    Bug(
        "finite-before-clipping",
        "clip",
        "Whether the gradient can be squared is asked of its norm before clipping.",
        "A spike that clipping would have tamed stops the training.",
        forward("clip", finite=lambda a: [np.isfinite(a.loss[0]) and a.norm[0] < a.largest[0]]),
    ),
    Bug(
        "loss-not-watched",
        "clip",
        "Only the gradients are asked whether they are finite.",
        "An infinite loss whose gradient is not: the update is made before anybody looks.",
        forward("clip", finite=lambda a: [a.norm[0] * min(1.0, a.limit[0] / a.norm[0]) < a.largest[0]]),
    ),
    Bug(
        "norm-without-root",
        "global_norm",
        "The sum of squares is taken for the norm.",
        "Clips too much above 1 and too little below.",
        forward("global_norm", norm=lambda a: (a.gradients * a.gradients).sum().real),
    ),
    Bug(
        "norm-of-largest",
        "global_norm",
        "The largest element is taken for the norm.",
        "Clipping almost never happens.",
        forward("global_norm", norm=lambda a: np.abs(a.gradients).max()),
    ),
    Bug(
        "clip-after-the-update",
        "update in model",
        "Clipping comes after the update.",
        "The first spike is not clipped, and the step after it is.",
        replaced(Model, "update", _clipped_afterwards),
        public="graphstorm, issue 1366.",
    ),
    Bug(
        "clip-per-tensor",
        "update in model",
        "Each tensor is clipped by its own norm.",
        "The direction of the step changes; large layers lose.",
        replaced(Model, "update", _clipped_by_tensor),
        public="transformers, pull request 614: per parameter group; Keras' clipnorm: per variable.",
    ),
    Bug(
        "clip-by-value",
        "update in model",
        "min(gradient, limit), element by element.",
        "Positive gradients are cut, negative ones are not.",
        replaced(Model, "update", _clipped_by_value),
        public="A founding document of this project (004) has it so.",
    ),
)
