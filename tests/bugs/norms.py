"""Bugs of LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.check.planted import layernorm_dx, normalized, row_mean
from tapeless.ops.contract import Array
from tests.bugs.planting import Bug, Plant, backward, forward, overwriting


def _weight_dropped(a: Any) -> Any:
    g, xhat = a.dy, normalized(a)
    return a.rstd[:, None] * (g - row_mean(g) - xhat * row_mean(g * xhat))


def _founding(a: Any) -> Any:
    """(1/D)·rstd·[D·dy − Σdy − (x−mean)·Σ(dy·(x−mean))]·γ"""
    centred, width = a.x - a.mean[:, None], a.x.shape[1]
    sums = a.dy.sum(axis=1, keepdims=True), (a.dy * centred).sum(axis=1, keepdims=True)
    return a.rstd[:, None] * (width * a.dy - sums[0] - centred * sums[1]) / width * a.weight


def _with_rstd(rstd: Callable[[Any], Any]) -> Plant:
    """Another rstd in the forward; the backward, which reads it, follows."""
    return forward(
        "layernorm",
        rstd=rstd,
        y=lambda a: (a.x - a.x.mean(axis=1, keepdims=True)) * rstd(a)[:, None] * a.weight + a.bias,
    )


def _count_off(g: Array, xhat: Array) -> Any:
    fewer = g.shape[1] - 1
    return g - g.sum(axis=1, keepdims=True) / fewer - xhat * (g * xhat).sum(axis=1, keepdims=True) / fewer


BUGS = (
    Bug(
        "layernorm-mean-term-twice",
        "layernorm",
        "mean(g) is subtracted twice.",
        "The loss still decreases.",
        layernorm_dx(lambda g, xhat: g - 2 * row_mean(g) - xhat * row_mean(g * xhat)),
        public="tt-metal, issue 53204: an accumulating register was not cleared; its test allowed 0.5.",
    ),
    Bug(
        "layernorm-statistics-over-all-rows",
        "layernorm",
        "The two means in dx run over all rows instead of one each.",
        "Right for one row, wrong as soon as a block takes several.",
        layernorm_dx(lambda g, xhat: g - g.mean() - xhat * (g * xhat).mean()),
        public="FlagGems, pull request 59: sums without an axis once a block had more than one row.",
    ),
    Bug(
        "layernorm-weight-dropped",
        "layernorm",
        "dx is made from dy instead of dy·weight.",
        "Nothing on a fresh model, whose norm weights are 1; it gets worse as they move.",
        backward("layernorm", dx=_weight_dropped),
    ),
    Bug(
        "layernorm-weight-outside",
        "layernorm",
        "The weight multiplies the result instead of standing inside both means.",
        "Nothing on a fresh model; wrong once the weights differ from each other.",
        backward("layernorm", dx=lambda a: _weight_dropped(a) * a.weight),
    ),
    Bug(
        "layernorm-founding-formula",
        "layernorm",
        "Weight outside the sums, and no rstd² in the last term.",
        "Right where weights are 1 and rows have variance 1, wrong everywhere else.",
        backward("layernorm", dx=_founding),
        public="A founding document of this project (000) has it so.",
    ),
    Bug(
        "layernorm-count-off-in-backward",
        "layernorm",
        "The means in dx divide by C − 1.",
        "Off by one in C: 0.1 % at 768 channels, lost in any loose tolerance.",
        layernorm_dx(_count_off),
    ),
    Bug(
        "layernorm-eps-missing",
        "layernorm",
        "No ε under the root.",
        "Infinite activations at the first constant row; until then nothing.",
        _with_rstd(lambda a: 1 / np.sqrt(a.x.var(axis=1))),
    ),
    Bug(
        "layernorm-eps-outside-root",
        "layernorm",
        "1/(σ + ε) instead of 1/√(σ² + ε).",
        "Loaded weights give slightly other numbers than where they were trained.",
        _with_rstd(lambda a: 1 / (a.x.std(axis=1) + a.eps)),
        public="The Annotated Transformer's LayerNorm divides by std + eps.",
    ),
    Bug(
        "layernorm-ddof",
        "layernorm",
        "The variance is divided by C − 1.",
        "Loaded weights give slightly other numbers; with few channels, clearly other ones.",
        _with_rstd(lambda a: 1 / np.sqrt(a.x.var(axis=1, ddof=1) + a.eps)),
        public="The Annotated Transformer's LayerNorm uses torch's std, which is unbiased by default.",
    ),
    Bug(
        "layernorm-weights-summed-over-channels",
        "layernorm",
        "dweight and dbias are summed over rows and channels: every channel gets the same.",
        "Norm weights move together, like one number.",
        backward("layernorm", dweight=lambda a: (a.dy * normalized(a)).sum(), dbias=lambda a: a.dy.sum()),
        public="A founding document of this project (000) has it so.",
    ),
    Bug(
        "layernorm-overwrites-stream",
        "layernorm",
        "dx is written where it should be added to the stream's gradient.",
        "The residual connection is gone in the backward: deep models do not train.",
        overwriting("layernorm", "dx"),
    ),
    Bug(
        "layernorm-overwrites-weight-gradient",
        "layernorm",
        "dweight is written instead of added to.",
        "With gradient accumulation only the last batch trains the norms.",
        overwriting("layernorm", "dweight"),
        public="llm.c, pull request 408, fixes gradient accumulation of its LayerNorm backward.",
    ),
)
