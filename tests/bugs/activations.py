"""Bugs of the activations."""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from typing import Any

import numpy as np

from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tapeless.ops.gelu.reference import CUBIC, SCALE
from tapeless.ops.swiglu.reference import _sigmoid
from tests.bugs.planting import Bug, backward, forward, helper, replaced, together


def _t(x: Array) -> Array:
    return np.tanh(SCALE * (x + CUBIC * x * x * x))


def _exact(x: float) -> float:
    return x * (1 + erf(x / sqrt(2))) / 2


def _exact_slope(x: float) -> float:
    return (1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi)


def _exact_analytic(a: Any) -> Any:
    """For a complex step as well: erf of the real part, and its slope times the imaginary one."""
    value: Array = np.vectorize(_exact)(a.x.real)
    return value + 1j * np.vectorize(_exact_slope)(a.x.real) * a.x.imag if np.iscomplexobj(a.x) else value


def _slope(outer: Any, inner: Any) -> Any:
    """½(1 + t) + ½x · outer(t) · inner(x²)"""
    return lambda a: a.dy * (0.5 * (1 + _t(a.x)) + 0.5 * a.x * outer(_t(a.x)) * inner(a.x * a.x))


def _in_place(y: Array, x: Array) -> None:
    x[...] = 0.5 * x * (1 + _t(x))
    y[...] = x


def _dgate(a: Any) -> Any:
    return a.dy * a.up * _sigmoid(a.gate) * (1 + a.gate * _sigmoid(-a.gate))


BUGS = (
    Bug(
        "gelu-exact-in-backward",
        "gelu",
        "The backward is of the erf form, the forward is the tanh form.",
        "Off by up to 1e-3 per element: loose tolerances let it pass.",
        backward("gelu", dx=lambda a: a.dy * np.vectorize(_exact_slope)(a.x)),
    ),
    Bug(
        "gelu-exact",
        "gelu",
        "The erf form in both directions, where the weights were trained with the tanh form.",
        "Loaded GPT-2 weights give slightly other scores; nothing else shows.",
        together(
            forward("gelu", y=_exact_analytic),
            backward("gelu", dx=lambda a: a.dy * np.vectorize(_exact_slope)(a.x)),
        ),
        public="Megatron-Bridge, pull request 4661: Gemma was run with the erf form.",
    ),
    Bug(
        "gelu-constant",
        "gelu",
        "0.044175 for 0.044715, in both directions.",
        "A digit transposed: outputs differ in the fourth place.",
        helper("gelu", "CUBIC", 0.044175),
    ),
    Bug(
        "gelu-constant-rounded-in-backward",
        "gelu",
        "The backward has 0.0447 for 0.044715.",
        "Gradients differ in the fifth place.",
        backward("gelu", dx=_slope(lambda t: 1 - t * t, lambda square: SCALE * (1 + 3 * 0.0447 * square))),
    ),
    Bug(
        "gelu-factor-three",
        "gelu",
        "The derivative of x³ without its 3.",
        "Wrong where x is far from zero, which is rare at the start.",
        backward("gelu", dx=_slope(lambda t: 1 - t * t, lambda square: SCALE * (1 + CUBIC * square))),
    ),
    Bug(
        "gelu-tanh-slope",
        "gelu",
        "1 − t instead of 1 − t².",
        "Gradients of the right sign and the wrong size.",
        backward("gelu", dx=_slope(lambda t: 1 - t, lambda square: SCALE * (1 + 3 * CUBIC * square))),
    ),
    Bug(
        "gelu-inner-slope-dropped",
        "gelu",
        "The chain rule stops at the tanh: the slope of its argument is missing.",
        "Trains, a little worse.",
        backward("gelu", dx=_slope(lambda t: 1 - t * t, lambda square: 1.0)),
    ),
    Bug(
        "gelu-overwrites-its-input",
        "gelu",
        "Computed in place: the input, which the backward needs, is gone.",
        "Gradients of gelu(gelu(x)).",
        replaced(OPS["gelu"], "forward", _in_place),
    ),
    Bug(
        "relu-leaks",
        "relu",
        "A slope of 0.01 below zero, in both directions.",
        "Another model than the one that was asked for.",
        together(
            forward("relu", y=lambda a: np.where(a.x.real > 0, a.x, 0.01 * a.x)),
            backward("relu", dx=lambda a: np.where(a.x > 0, a.dy, 0.01 * a.dy)),
        ),
    ),
    Bug(
        "tanh-slope-of-input",
        "tanh",
        "1 − x² where 1 − y² is meant: the formula is for the output and is given the input.",
        "Negative slopes beyond 1 and −1: training diverges.",
        backward("tanh", dx=lambda a: a.dy * (1 - a.x * a.x)),
    ),
    Bug(
        "swiglu-gate-and-up-exchanged",
        "swiglu",
        "The other half of the product goes through the sigmoid.",
        "Trains as well; published weights write noise.",
        forward("swiglu", y=lambda a: a.gate * a.up * _sigmoid(a.up)),
    ),
    Bug(
        "swiglu-gradients-exchanged",
        "swiglu",
        "dgate is stored as dup and dup as dgate.",
        "Shapes agree, so nothing crashes; both halves follow the other's gradient.",
        backward("swiglu", dgate=lambda a: a.dy * a.gate * _sigmoid(a.gate), dup=_dgate),
    ),
    Bug(
        "swiglu-sigmoid-for-swish",
        "swiglu",
        "y = σ(gate)·up: the factor gate is missing, as in the gated unit that came before.",
        "Trains; published weights write noise.",
        forward("swiglu", y=lambda a: _sigmoid(a.gate) * a.up),
    ),
    Bug(
        "swiglu-slope-of-sigmoid",
        "swiglu",
        "dgate has σ′ alone and lacks the term that comes from the factor gate.",
        "The loss falls, more slowly.",
        backward("swiglu", dgate=lambda a: a.dy * a.up * a.gate * _sigmoid(a.gate) * _sigmoid(-a.gate)),
    ),
    Bug(
        "swiglu-gate-taken-for-constant",
        "swiglu",
        "dgate = 0: only the half that is let through learns.",
        "Trains, to a worse place.",
        backward("swiglu", dgate=lambda a: np.zeros_like(a.dgate)),
    ),
)
