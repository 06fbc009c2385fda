"""Planted bugs: what a bug is, how a formula of an op is made wrong for a while, and a dozen bugs of the backward that
show in the teaching model. The explorer's lessons plant these, and so does `tapeless check --bugs`.

Nothing here edits source. A plant replaces an attribute by a wrong version of it and puts the right one back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np

from tapeless.ops import OPS
from tapeless.ops.attention.reference import _by_head, _join, _split, _summed, _visible, _weights
from tapeless.ops.contract import NONE, Array, store

Plant = Callable[[], AbstractContextManager[None]]
Formula = Callable[[Any], Any]  # from a kernel's arguments, by name, to one of its outputs


@dataclass(frozen=True)
class Bug:
    name: str
    where: str  # what a report must name: the `place` of a finding
    what: str
    seen: str  # what a user would notice
    plant: Plant
    public: str | None = None  # where it has bitten people


def wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """An attribute of a module or class is another for a while, made from the one that is there."""

    @contextmanager
    def plant() -> Iterator[None]:
        right, own = getattr(owner, name), name in vars(owner)
        setattr(owner, name, make(right))
        try:
            yield
        finally:
            if own:
                setattr(owner, name, right)
            else:
                delattr(owner, name)  # it was inherited

    return plant


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Plant:
    """A function that is given the right one first."""
    return wrapped(owner, name, lambda right: lambda *args, **kwargs: wrapper(right, *args, **kwargs))


def spoilt(op: str, direction: str, formulas: dict[str, Formula]) -> Plant:
    """The kernel is right but for these outputs. It still adds where it is told to."""
    signature = OPS[op].SPEC.signature(direction)
    names = (*signature.arguments, *signature.scalars)

    def wrong(right: Any, *args: Any, add: frozenset[str] = NONE) -> None:
        values = SimpleNamespace(**dict(zip(names, args, strict=True)))
        asked = {name: formula for name, formula in formulas.items() if getattr(values, name) is not None}
        results = {name: np.array(formula(values)) for name, formula in asked.items()}
        before = {name: getattr(values, name).copy() for name in asked}
        right(*args, **({"add": add} if add else {}))
        for name, result in results.items():
            out = getattr(values, name)
            out[...] = before[name]
            store(out, result, name in add)

    return around(OPS[op], direction, wrong)


def backward(op: str, **formulas: Formula) -> Plant:
    return spoilt(op, "backward", formulas)


# LayerNorm: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), where g = dy·weight.


def normalized(a: Any) -> Any:
    return (a.x - a.mean[:, None]) * a.rstd[:, None]


def row_mean(x: Array) -> Any:
    return x.mean(axis=1, keepdims=True)


def layernorm_dx(inside: Callable[[Array, Array], Array]) -> Plant:
    """dx = rstd · inside(g, x̂)"""
    return backward("layernorm", dx=lambda a: a.rstd[:, None] * inside(a.dy * a.weight, normalized(a)))


# Attention: ds = p·(dp − Σ dy·y), dq = ds·k/√D, dk = dsᵀ·q/√D.


def attention_parts(a: Any, visible: Array | None = None) -> tuple[Array, Array, Array, Array, Array, float]:
    """q, k, p, dp and ds by head, as they should be (but for the mask, where one is given), and 1/√D."""
    heads = a.lse.shape[1]
    q, k, v = _by_head(a.q, a.k, a.v, heads)
    y, dy = _split(a.y, heads), _split(a.dy, heads)
    scale = 1 / sqrt(q.shape[3])
    seen = _visible(a.q.shape[1], a.k.shape[1], a.causal, a.window, a.starts) if visible is None else visible
    p = _weights(q @ k.swapaxes(2, 3) * scale, a.lse, seen)
    dp = dy @ v.swapaxes(2, 3)
    return q, k, p, dp, p * (dp - (dy * y).sum(axis=-1, keepdims=True)), scale


def dq_of(ds: Array, k: Array, scale: float) -> Array:
    return _join(ds @ k) * scale


def dk_of(ds: Array, q: Array, scale: float, a: Any) -> Array:
    return _summed(ds.swapaxes(2, 3) @ q, a.k) * scale


def scaled_scores(power: int) -> Plant:
    """dq and dk with 1/√D to some power."""

    def dq(a: Any) -> Any:
        _, k, _, _, ds, scale = attention_parts(a)
        return dq_of(ds, k, scale**power)

    def dk(a: Any) -> Any:
        q, _, _, _, ds, scale = attention_parts(a)
        return dk_of(ds, q, scale**power, a)

    return backward("attention", dq=dq, dk=dk)


def softmax_slope(slope: Callable[[Array, Array], Array]) -> Plant:
    """dq and dk from another derivative of the softmax: ds = slope(p, dp)."""

    def dq(a: Any) -> Any:
        _, k, p, dp, _, scale = attention_parts(a)
        return dq_of(slope(p, dp), k, scale)

    def dk(a: Any) -> Any:
        q, _, p, dp, _, scale = attention_parts(a)
        return dk_of(slope(p, dp), q, scale, a)

    return backward("attention", dq=dq, dk=dk)


def _lost_head(a: Any) -> Any:
    _, k, _, _, ds, scale = attention_parts(a)
    ds[:, -1] = 0
    return dq_of(ds, k, scale)


def _last_of_each_token(a: Any) -> Any:
    table = np.zeros_like(a.dweight)
    table[a.tokens] = a.dy
    return table


PLANTED = (  # the plainest first
    Bug(
        "relu-passes-all",
        "relu",
        "The backward lets everything through.",
        "Dead units seem to come alive; the loss falls by accident only.",
        backward("relu", dx=lambda a: a.dy),
    ),
    Bug(
        "repeated-tokens-set",
        "embedding",
        "A token that stands twice keeps only the last of its gradients.",
        "Frequent words learn as slowly as rare ones.",
        backward("embedding", dweight=_last_of_each_token),
        public="pytorch, issue 1528: indexing with duplicates kept the last gradient only.",
    ),
    Bug(
        "bias-averaged",
        "linear",
        "dbias is the mean over rows.",
        "Biases learn B·T times too slowly, which looks like biases that do not matter.",
        backward("linear", dbias=lambda a: a.dy.mean(axis=0)),
    ),
    Bug(
        "weight-gradient-of-half-the-batch",
        "linear",
        "dweight leaves out the second half of the rows.",
        "Half the batch is computed for nothing.",
        backward("linear", dweight=lambda a: a.x[: len(a.x) // 2].T @ a.dy[: len(a.x) // 2]),
    ),
    Bug(
        "head-lost",
        "attention",
        "The last head's queries get no gradient: a loop that ends one too early.",
        "One head stays as it was initialised; visible only if somebody looks at the heads one by one.",
        backward("attention", dq=_lost_head),
    ),
    Bug(
        "layernorm-mean-term-dropped",
        "layernorm",
        "dx lacks −mean(g): the mean is taken for a constant.",
        "Trains, a little worse; Σ dx is no longer zero.",
        layernorm_dx(lambda g, xhat: g - xhat * row_mean(g * xhat)),
    ),
    Bug(
        "softmax-row-sum-dropped",
        "attention",
        "ds = p · dp, without the sum over the row that makes ds sum to zero.",
        "Scores drift together; the gradient of the keys is dominated by a common part.",
        softmax_slope(lambda p, dp: p * dp),
    ),
    Bug(
        "attention-scale-lost-in-backward",
        "attention",
        "dq and dk lack 1/√D.",
        "Query and key weights move √D times too fast; a smaller learning rate hides it.",
        scaled_scores(0),
    ),
    Bug(
        "layernorm-dweight-of-x",
        "layernorm",
        "dweight = Σ dy·x instead of Σ dy·x̂.",
        "Norm weights run away where activations are large.",
        backward("layernorm", dweight=lambda a: (a.dy * a.x).sum(axis=0)),
    ),
    Bug(
        "layernorm-last-row-lost",
        "layernorm",
        "dweight and dbias leave out the last row.",
        "One part in B·T is missing: no curve shows it.",
        backward(
            "layernorm",
            dweight=lambda a: (a.dy * normalized(a))[:-1].sum(axis=0),
            dbias=lambda a: a.dy[:-1].sum(axis=0),
        ),
    ),
    Bug(
        "relu-mask-of-gradient",
        "relu",
        "The backward asks whether dy is positive instead of x.",
        "Negative gradients never pass.",
        backward("relu", dx=lambda a: np.where(a.dy > 0, a.dy, 0)),
    ),
    Bug(
        "layernorm-variance-term-dropped",
        "layernorm",
        "dx lacks −x̂·mean(g·x̂): the variance is taken for a constant.",
        "Gradients along x̂ that should vanish make activations grow.",
        layernorm_dx(lambda g, xhat: g - row_mean(g)),
    ),
)
