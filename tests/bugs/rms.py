"""Bugs of RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.ops.contract import Array
from tests.bugs.planting import Bug, Plant, backward, forward, overwriting

Inside = Callable[[Array, Array], Array]  # from g = dy·weight and x̂ to what rstd is multiplied with


def _stretches(x: Array, a: Any) -> Array:
    return x.reshape(*a.rstd.shape, -1)


def _dx(inside: Inside) -> Plant:
    """From g = dy·weight and x̂, both R H D."""

    def dx(a: Any) -> Any:
        rstd = a.rstd[..., None]
        return (rstd * inside(_stretches(a.dy, a) * a.weight, _stretches(a.x, a) * rstd)).reshape(a.x.shape)

    return backward("rmsnorm", dx=dx)


def _mean(x: Array) -> Any:
    return x.mean(axis=2, keepdims=True)


def _with_rstd(rstd: Callable[[Any], Any]) -> Plant:
    """Another rstd in the forward; the backward, which reads it, follows."""

    def y(a: Any) -> Any:
        return (_stretches(a.x, a) * rstd(a)[..., None] * a.weight).reshape(a.x.shape)

    return forward("rmsnorm", rstd=rstd, y=y)


def _squares(a: Any) -> Any:
    split = _stretches(a.x, a)
    return (split * split).mean(axis=2)


def _over_whole_rows(a: Any) -> Any:
    whole = 1 / np.sqrt((a.x * a.x).mean(axis=1, keepdims=True) + a.eps)
    return np.broadcast_to(whole, a.rstd.shape)


def _weight_outside(a: Any) -> Any:
    g, xhat = _stretches(a.dy, a), _stretches(a.x, a) * a.rstd[..., None]
    return (a.rstd[..., None] * (g - xhat * _mean(g * xhat)) * a.weight).reshape(a.x.shape)


BUGS = (
    Bug(
        "rmsnorm-eps-outside-root",
        "rmsnorm",
        "1/(√(mean x²) + ε) instead of 1/√(mean x² + ε).",
        "Loaded weights give slightly other numbers than where they were trained.",
        _with_rstd(lambda a: 1 / (np.sqrt(_squares(a)) + a.eps)),
    ),
    Bug(
        "rmsnorm-eps-missing",
        "rmsnorm",
        "No ε under the root.",
        "Infinite activations at the first row of zeros; until then nothing.",
        _with_rstd(lambda a: 1 / np.sqrt(_squares(a))),
    ),
    Bug(
        "rmsnorm-mean-taken-off",
        "rmsnorm",
        "The variance for the mean square: LayerNorm's statistic.",
        "Trains as well; published weights write noise.",
        _with_rstd(lambda a: 1 / np.sqrt(_stretches(a.x, a).var(axis=2) + a.eps)),
    ),
    Bug(
        "rmsnorm-sum-for-mean",
        "rmsnorm",
        "1/√(Σ x² + ε): the length of a row, not its root mean square.",
        "Activations start √C times too small.",
        _with_rstd(lambda a: 1 / np.sqrt((_stretches(a.x, a) ** 2).sum(axis=2) + a.eps)),
    ),
    Bug(
        "rmsnorm-heads-together",
        "rmsnorm",
        "The norm of queries or keys is taken over all heads at once, not head by head.",
        "Trains; published weights of models that norm queries and keys give other text.",
        _with_rstd(_over_whole_rows),
    ),
    Bug(
        "rmsnorm-scale-taken-for-constant",
        "rmsnorm",
        "dx = rstd·g: rstd is taken for a constant.",
        "Gradients along x̂ that should vanish make activations grow.",
        _dx(lambda g, xhat: g),
    ),
    Bug(
        "rmsnorm-mean-term-of-layernorm",
        "rmsnorm",
        "dx also takes off mean(g), as LayerNorm's does.",
        "Trains, a little worse.",
        _dx(lambda g, xhat: g - _mean(g) - xhat * _mean(g * xhat)),
    ),
    Bug(
        "rmsnorm-weight-outside",
        "rmsnorm",
        "The weight multiplies the result instead of standing inside the mean.",
        "Nothing on a fresh model; wrong once the weights differ from each other.",
        backward("rmsnorm", dx=_weight_outside),
    ),
    Bug(
        "rmsnorm-dweight-of-one-head",
        "rmsnorm",
        "dweight leaves out all heads but the first.",
        "Right where a whole row is normed; the norm of queries learns from one head.",
        backward("rmsnorm", dweight=lambda a: _stretches(a.dy * a.x, a)[:, 0].T @ a.rstd[:, 0]),
    ),
    Bug(
        "rmsnorm-overwrites-weight-gradient",
        "rmsnorm",
        "dweight is written instead of added to.",
        "With gradient accumulation only the last batch trains the norms.",
        overwriting("rmsnorm", "dweight"),
    ),
)
