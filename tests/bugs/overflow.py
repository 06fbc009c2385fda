"""Bugs that show at the ends of the range only: what overflows on the way to a result that fits, and a lost NaN.

All are right on the numbers of an ordinary training, and each is written in float32 NumPy, where it overflows as it
would in a kernel.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from tapeless.ops.attention import reference as attention
from tapeless.ops.contract import Array
from tests.bugs.cpu import _binder, _instead
from tests.bugs.planting import Bug

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


def _scores(q: Array, k: Array) -> Array:
    """B H T S, from B H T D and B H S D."""
    scores: Array = q @ k.swapaxes(2, 3) / np.float32(sqrt(q.shape[3]))
    return scores


def _no_maximum(y: Array, lse: Array, q: Array, k: Array, v: Array, starts: Any, causal: bool, window: int) -> None:
    q, k, values = attention._by_head(q, k, v, lse.shape[1])
    seen = attention._visible(q.shape[2], k.shape[2], causal, window, starts)
    e = np.where(seen, np.exp(_scores(q, k)), 0)
    lse[...] = np.log(e.sum(axis=3))
    y[...] = (e / e.sum(axis=3, keepdims=True) @ values).swapaxes(1, 2).reshape(y.shape)


def _from_rounded_sums(
    dq: Array,
    dk: Array,
    dv: Array,
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    starts: Any,
    causal: bool,
    window: int,
) -> None:
    heads = lse.shape[1]
    qs, ks, vs = attention._by_head(q, k, v, heads)
    ys, dys = (attention._split(x, heads) for x in (y, dy))
    seen = attention._visible(qs.shape[2], ks.shape[2], causal, window, starts)
    p = np.where(seen, np.exp(_scores(qs, ks) - lse[..., None]), 0)
    ds = p * (dys @ vs.swapaxes(2, 3) - (dys * ys).sum(axis=3, keepdims=True)) / np.float32(sqrt(qs.shape[3]))
    dq[...] = attention._join(ds @ ks)
    dk[...] = attention._summed(ds.swapaxes(2, 3) @ qs, dk)
    dv[...] = attention._summed(p.swapaxes(2, 3) @ dys, dv)


def _no_maximum_cached(y: Array, q: Array, keys: Array, values: Array, position: Array, window: int) -> None:
    batch, groups, _, width = keys.shape
    heads = q.shape[2] // width
    keys, values = (np.repeat(held, heads // groups, axis=1) for held in (keys, values))
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


def _mean_square_overflows(y: Array, rstd: Array, x: Array, weight: Array, eps: float) -> None:
    split = x.reshape(*rstd.shape, -1)
    rstd[...] = ONE / np.sqrt((split * split).mean(axis=2) + np.float32(eps))
    y[...] = (split * rstd[..., None] * weight).reshape(x.shape)


def _sigmoid_overflows(y: Array, gate: Array, up: Array) -> None:
    e = np.exp(gate)
    y[...] = gate * (e / (ONE + e)) * up


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
        "cpu-mean-square-overflows",
        "rmsnorm on cpu",
        "Squares of RMSNorm in float32: infinite from 2e19 on, though their root fits.",
        "Activations of 0, and no gradient.",
        _binder("rmsnorm", "forward", _mean_square_overflows),
    ),
    Bug(
        "cpu-sigmoid-overflows",
        "swiglu on cpu",
        "eˣ / (1 + eˣ): ∞ over ∞ from 89 on.",
        "NaN once a gate is wide open.",
        _instead("swiglu", "forward", _sigmoid_overflows),
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
