"""Bugs that show at the ends of the range only: what overflows on the way to a result that fits, and a lost NaN.

All are right on the numbers of an ordinary training, and each is written in float32 NumPy, where it overflows as it
would in a kernel.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from tapeless.check.bugs.cpu import _binder, _instead
from tapeless.check.bugs.planting import Bug
from tapeless.ops.contract import Array

SCALE, CUBIC = np.float32(2 * sqrt(2 / pi)), np.float32(2 * sqrt(2 / pi) * 0.044715)
ONE = np.float32(1)


def _falling(x: Array) -> Array:
    """exp(−2u) of GELU, at most exp(80)."""
    falling: Array = np.exp(np.minimum(-x * (SCALE + CUBIC * (x * x)), np.float32(80)))
    return falling


def _slope_grouped(dx: Array, dy: Array, x: Array) -> None:
    e = _falling(x)
    s = ONE / (ONE + e)
    dx[...] = dy * s * (ONE + x * e * (SCALE + 3 * CUBIC * (x * x)) * s)


def _slope_times_square(dx: Array, dy: Array, x: Array) -> None:
    e = _falling(x)
    s = ONE / (ONE + e)
    slope = np.where(x < -10, 0, s * (ONE + x * (e * s) * (SCALE + 3 * CUBIC * (x * x))))
    dx[...] = dy * slope


def _scores(q: Array, k: Array, heads: int) -> Array:
    """B H T S, from B T C and B S C."""
    width = q.shape[2] // heads
    split = [x.reshape(*x.shape[:2], heads, width).swapaxes(1, 2) for x in (q, k)]
    scores: Array = split[0] @ split[1].swapaxes(2, 3) / np.float32(sqrt(width))
    return scores


def _no_maximum(y: Array, lse: Array, q: Array, k: Array, v: Array, causal: bool) -> None:
    scores = _scores(q, k, lse.shape[1])
    queries, keys = scores.shape[2:]
    e = np.exp(scores)
    e = np.tril(e, keys - queries) if causal else e
    values = v.reshape(*v.shape[:2], lse.shape[1], -1).swapaxes(1, 2)
    lse[...] = np.log(e.sum(axis=3))
    y[...] = (e / e.sum(axis=3, keepdims=True) @ values).swapaxes(1, 2).reshape(y.shape)


def _from_rounded_sums(
    dq: Array, dk: Array, dv: Array, dy: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, causal: bool
) -> None:
    heads = lse.shape[1]
    scores = _scores(q, k, heads)
    p = np.exp(scores - lse[..., None])
    p = np.tril(p, scores.shape[3] - scores.shape[2]) if causal else p
    qs, ks, vs, ys, dys = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (q, k, v, y, dy))
    ds = p * (dys @ vs.swapaxes(2, 3) - (dys * ys).sum(axis=3, keepdims=True)) / np.float32(sqrt(qs.shape[3]))
    made = ((dq, ds @ ks), (dk, ds.swapaxes(2, 3) @ qs), (dv, p.swapaxes(2, 3) @ dys))
    for out, value in made:
        out[...] = value.swapaxes(1, 2).reshape(out.shape)


def _no_maximum_cached(y: Array, q: Array, keys: Array, values: Array, position: Array) -> None:
    batch, heads, _, width = keys.shape
    split = q.reshape(batch, -1, heads, width)
    for t in range(q.shape[1]):
        seen = int(position[0]) + t + 1
        e = np.exp(np.einsum("bhd,bhjd->bhj", split[:, t], keys[:, :, :seen]) / np.float32(sqrt(width)))
        mixed = np.einsum("bhj,bhjd->bhd", e / e.sum(axis=-1, keepdims=True), values[:, :, :seen])
        y[:, t] = mixed.reshape(batch, -1)


def _tanh_by_exponentials(y: Array, x: Array) -> None:
    y[...] = (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x))


def _variance_overflows(y: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array, eps: float) -> None:
    centred = x - mean[:, None]
    rstd[...] = ONE / np.sqrt((centred * centred).mean(axis=1) + np.float32(eps))
    y[...] = centred * rstd[:, None] * weight + bias


def _norm_overflows(norm: Array, norms: Array, gradients: Array, *rest: object, **options: object) -> None:
    norm[0] = np.sqrt((gradients * gradients).sum())


def _squares_first(*args: Any, **options: Any) -> None:
    """As the kernel, but that g² is computed before it is made a thousandth."""
    a = dict(zip(("weights", "m", "v", "master", "step", "moved", "norms", "gradients", "scale"), args, strict=False))
    v, g = a["v"], np.float32(a["scale"][0]) * a["gradients"]
    v[np.isinf(g * g)] = np.inf


def _swallows_nan(y: Array, x: Array) -> None:
    y[...] = np.fmax(x, 0)


BUGS = (
    Bug(
        "cpu-gelu-grouping",
        "gelu on cpu",
        "(x · e) · s for x · (e · s), where e is exp(80): an optimising compiler may regroup it so.",
        "A gradient of −∞ the first time an activation is below −30; the training is stopped by its guard.",
        _instead("gelu", "backward", _slope_grouped),
    ),
    Bug(
        "cpu-gelu-square",
        "gelu on cpu",
        "The slope has a factor x², which is infinite where its other factor is 0.",
        "NaN in a training that has long diverged, and a report that blames the kernel.",
        _instead("gelu", "backward", _slope_times_square),
    ),
    Bug(
        "cpu-softmax-without-maximum",
        "attention on cpu",
        "exp(s) / Σ exp(s), without taking the largest score off.",
        "NaN as soon as a score is above 88.",
        _instead("attention", "forward", _no_maximum),
    ),
    Bug(
        "cpu-saturated-attention",
        "attention on cpu",
        "The backward rebuilds its weights from the saved float32 log-sum-exp, and takes dy · y for the sum of p · dp.",
        "Where one key has all the weight, rounding errors take the place of a gradient of 0.",
        _instead("attention", "backward", _from_rounded_sums),
    ),
    Bug(
        "cpu-cached-softmax-without-maximum",
        "cached_attention on cpu",
        "The same while decoding.",
        "The model trains well and says the same token for ever.",
        _instead("cached_attention", "forward", _no_maximum_cached),
    ),
    Bug(
        "cpu-tanh-by-exponentials",
        "tanh on cpu",
        "(eˣ − e⁻ˣ) / (eˣ + e⁻ˣ): ∞ over ∞ from 89 on, and few digits near 0.",
        "NaN once an activation grows.",
        _instead("tanh", "forward", _tanh_by_exponentials),
    ),
    Bug(
        "cpu-variance-overflows",
        "layernorm on cpu",
        "Squares of the variance in float32: infinite from 2e19 on, though the variance's root fits.",
        "A norm that returns its bias, and no gradient.",
        _binder("layernorm", "forward", _variance_overflows),
    ),
    Bug(
        "cpu-norm-overflows",
        "global_norm on cpu",
        "Squares of the gradients in float32: infinite from 2e19 on, and 0 below 1e-23.",
        "Clipping sets a large gradient to 0 and a small one free.",
        _binder("global_norm", "forward", _norm_overflows),
    ),
    Bug(
        "cpu-adamw-squares-first",
        "adamw on cpu",
        "(1 − β₂) · (g · g) for ((1 − β₂) · g) · g: g² overflows where the running mean fits.",
        "A weight that never moves again after one large gradient.",
        _binder("adamw", "forward", _squares_first),
    ),
    Bug(
        "cpu-nan-swallowed",
        "relu on cpu",
        "The larger of x and 0, by an instruction that prefers a number to NaN.",
        "A NaN is gone after the next layer, and the guard has nothing to find.",
        _binder("relu", "forward", _swallows_nan),
    ),
)
