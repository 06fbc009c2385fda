"""Bugs of Muon: what is orthogonalised, on which side, how long the step is, and which weights it is for."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from tapeless.models import transformer
from tapeless.ops.contract import Array
from tapeless.ops.muon import reference as muon
from tapeless.program.call import member_offsets
from tests.bugs.cpu import _patched
from tests.bugs.planting import Bug, Plant, around, forward, helper

_orthogonal = muon.orthogonal


def _not_normalised(x: Array) -> Array:
    return _rounds(x, *muon.COEFFICIENTS)


def _by_largest(x: Array) -> Array:
    return _rounds(x / np.abs(x).max(), *muon.COEFFICIENTS)


def _exchanged(x: Array) -> Array:
    a, b, c = muon.COEFFICIENTS
    return _rounds(x / max(np.linalg.norm(x), muon.SMALLEST), a, c, b)


def _rounds(x: Array, a: float, b: float, c: float) -> Array:
    for _ in range(muon.ROUNDS):
        products = x @ x.T
        x = a * x + (b * products + c * products @ products) @ x
    return x


def _wrong_side(x: Array) -> Array:
    """Products of the rows, of a square matrix multiplied from the right."""
    if x.shape[0] != x.shape[1]:
        return _orthogonal(x)
    a, b, c = muon.COEFFICIENTS
    x = x / max(np.linalg.norm(x), muon.SMALLEST)
    for _ in range(muon.ROUNDS):
        products = x @ x.T
        x = a * x + x @ (b * products + c * products @ products)
    return x


def _steps(
    ahead: Callable[[float, Array, Array], Array] = lambda mu, m, g: mu * m + (1 - mu) * g,
    size: Callable[[int, int, int], float] = lambda rows, width, packed: sqrt(max(rows, width)),
    decays: bool = True,
    predicated: bool = True,
) -> Plant:
    """Weights of which each matrix steps along ahead(μ, m, g), so far as size(rows, columns, columns of the weight)
    says."""

    def weights(a: Any) -> Array:
        changed: Array = a.weights.copy()
        if predicated and not a.finite[0]:
            return changed
        m, v, step, told = a.m.copy(), a.v.copy(), a.step.copy(), np.zeros(len(a.sections))
        given = (a.gradients, a.scale, np.ones(1), a.lr, a.momentum, a.beta1, a.beta2, a.eps, a.decay, a.decayed)
        _forward(changed, m, v, None, step, told, told, *given, a.matrices, a.sections)
        for start, rows, length, columns in muon.each(a.matrices):
            out, old, mean, g = (
                of[start : start + rows * length].reshape(rows, length)[:, columns]
                for of in (changed, a.weights, m, a.scale[0] * a.gradients)
            )
            lost = a.decay if decays and any(first <= start < stop for first, stop in a.decayed) else 0.0
            way = size(rows, columns.stop - columns.start, length) * _orthogonal(ahead(a.momentum, mean, g))
            out[...] = old - a.lr[0] * (lost * old + muon.SHARE * way)
        return changed

    return forward("muon", weights=weights)


_forward = muon.forward


def _mean_exchanged(a: Any) -> Array:
    m: Array = a.m.copy()
    if a.finite[0]:
        right: Array = m + (1 - a.beta1) * (a.scale[0] * a.gradients - m)
        for start, rows, length, columns in muon.each(a.matrices):
            mean, g = (
                of[start : start + rows * length].reshape(rows, length)[:, columns]
                for of in (right, a.scale[0] * a.gradients)
            )
            old = m[start : start + rows * length].reshape(rows, length)[:, columns]
            mean[...] = (1 - a.momentum) * old + a.momentum * g
        return right
    return m


def _packed(right: Any, region: Any) -> muon.Matrices:
    return tuple((start, rows, (sum(widths),)) for start, rows, widths in right(region))


def _embeddings_too(right: Any, region: Any) -> muon.Matrices:
    members = zip(region.members, member_offsets(region.members)[0], strict=True)
    return tuple(
        (start, member.shape[0], member.matrices or member.shape[1:])
        for member, start in members
        if len(member.shape) == 2
    )


BUGS = (
    Bug(
        "muon-wrong-side",
        "muon",
        "Of a square matrix, the products of its rows are multiplied from the right.",
        "Projections learn worse than the feed-forward, whose matrices are not square.",
        helper("muon", "orthogonal", _wrong_side),
    ),
    Bug(
        "muon-not-normalised",
        "muon",
        "The rounds begin without dividing by the norm.",
        "Singular values above 1 run away: NaN within a few steps, or hardly a step where gradients are small.",
        helper("muon", "orthogonal", _not_normalised),
    ),
    Bug(
        "muon-normalised-by-largest",
        "muon",
        "Divided by the largest element instead of the norm.",
        "Singular values lie above 1, where the polynomial does not bring them back.",
        helper("muon", "orthogonal", _by_largest),
    ),
    Bug(
        "muon-coefficients-exchanged",
        "muon",
        "The coefficients of the cube and of the fifth power are exchanged.",
        "Diverges within a few steps.",
        helper("muon", "orthogonal", _exchanged),
    ),
    Bug(
        "muon-without-nesterov",
        "muon",
        "The mean itself is orthogonalised, not one mean further.",
        "A little slower.",
        _steps(ahead=lambda mu, m, g: m),
    ),
    Bug(
        "muon-nesterov-exchanged",
        "muon",
        "Mean and gradient have each other's share in what is orthogonalised.",
        "As noisy as without momentum.",
        _steps(ahead=lambda mu, m, g: (1 - mu) * m + mu * g),
    ),
    Bug(
        "muon-mean-exchanged",
        "muon",
        "The mean keeps 1 − μ of itself and takes μ of the gradient.",
        "As noisy as without momentum.",
        forward("muon", m=_mean_exchanged),
    ),
    Bug(
        "muon-scale-of-the-smaller-side",
        "muon",
        "The step's length goes with the smaller side of the matrix.",
        "The feed-forward learns at half the rate.",
        _steps(size=lambda rows, width, packed: sqrt(min(rows, width))),
    ),
    Bug(
        "muon-scale-of-the-packed-weight",
        "muon",
        "The step's length goes with the weight in which matrices lie side by side.",
        "Queries, keys and values step 1.7 times too far.",
        _steps(size=lambda rows, width, packed: sqrt(max(rows, packed))),
    ),
    Bug(
        "muon-scale-of-out-over-in",
        "muon",
        "√max(1, out/in), which belongs to another rate, instead of 0.2 √max(in, out).",
        "At a rate that suits AdamW matrices hardly move.",
        _steps(size=lambda rows, width, packed: 5 * sqrt(max(1, width / rows))),
        public="torch.optim.Muon does so unless adjust_lr_fn is 'match_rms_adamw'.",
    ),
    Bug(
        "muon-without-decay",
        "muon",
        "Matrices that Muon steps do not decay.",
        "They grow for as long as the training lasts.",
        _steps(decays=False),
    ),
    Bug(
        "muon-not-predicated",
        "muon",
        "The update does not look at `finite`.",
        "One overflow, and every matrix is NaN.",
        _steps(predicated=False),
    ),
    Bug(
        "muon-packed-not-taken-apart",
        "muon in transformer",
        "Queries, keys and values are orthogonalised as one matrix.",
        "Whichever of the three has the largest gradients has most of the step.",
        around(transformer, "_matrices", _packed),
        public="GPT-2's c_attn, given to torch.optim.Muon as it is.",
    ),
    Bug(
        "muon-of-embeddings",
        "muon in transformer",
        "Everything with two axes is taken for a matrix: embeddings, positions and the head too.",
        "Words that did not occur are moved as far as those that did.",
        around(transformer, "_matrices", _embeddings_too),
        public="The example in torch.optim.Muon's documentation chooses by p.ndim == 2.",
    ),
    Bug(
        "cpu-muon-one-round-less",
        "muon on cpu",
        "Four rounds instead of five.",
        "Directions with small gradients move less.",
        _patched("muon", "ROUNDS", lambda right: right - 1),
    ),
)
