"""Where a result is small because its terms cancel by nature, so that neither its own size nor how far it moves with
its inputs shows what it was made of: the size of those terms, by which its error is measured in `check/ranges.py`. An
op that is not here is measured by its result and its inputs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.ops.contract import Array

Arrays = dict[str, Array]
Sizes = dict[str, Any]

# The exp of a kernel is 0 below 2⁻¹²⁶: weights that small are lost, whatever they are multiplied by.
LOST_WEIGHT = 2.0**-100  # times a rounding of 2⁻²⁴, over four such weights
# The reference itself has 1 + tanh and 1 − tanh² only to float64's last digit of 1.
LOST_DIGIT = 2.0**-52 / 2.0**-24


def _tanh(a: Arrays) -> Sizes:
    return {"dx": LOST_DIGIT * np.abs(a["dy"])} if "dy" in a else {}


def _gelu(a: Arrays) -> Sizes:
    """Its slope has a factor 1 − tanh² times x³, where that is not yet 0 at most 100."""
    sizes = {"y": LOST_DIGIT * np.abs(a["x"])}
    return sizes | ({"dx": 100 * LOST_DIGIT * np.abs(a["dy"])} if "dy" in a else {})


def _attention(a: Arrays) -> Sizes:
    largest = {name: np.abs(array).max() for name, array in a.items()}
    sizes: Sizes = {"y": LOST_WEIGHT * largest["v"], "lse": 1.0}  # a logarithm beside the largest score
    if "dy" in a:
        slope = LOST_WEIGHT * a["dy"].shape[-1] * largest["dy"] * largest["v"]
        sizes |= {"dv": LOST_WEIGHT * largest["dy"], "dq": slope * largest["k"], "dk": slope * largest["q"]}
    return sizes


def _cached_attention(a: Arrays) -> Sizes:
    return {"y": LOST_WEIGHT * np.abs(a["values"]).max()}


def _classifier(a: Arrays) -> Sizes:
    """p − onehot: for a row that is nearly right the two are nearly equal."""
    z = a["x"] @ a["weight"].T
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.flatnonzero(a["targets"] >= 0)
    picked = a["targets"][rows]
    share = np.zeros(len(p))
    share[rows] = (a["class_weights"][picked] if "class_weights" in a else 1) / a["count"]
    p[rows, picked] += 1
    dz = (p + LOST_WEIGHT) * share[:, None]
    return {"dx": dz @ np.abs(a["weight"]), "dweight": dz.T @ np.abs(a["x"])}


def _proximity(a: Arrays) -> Sizes:
    """−‖x − weight‖² by products and squares, because that is a matrix product."""
    squares = (a["x"] ** 2).sum(axis=1)[:, None] + (a["weight"] ** 2).sum(axis=1)
    return {"y": squares + 2 * np.abs(a["x"]) @ np.abs(a["weight"]).T}


TERMS: dict[str, Callable[[Arrays], Sizes]] = {
    "tanh": _tanh,
    "gelu": _gelu,
    "attention": _attention,
    "cached_attention": _cached_attention,
    "classifier": _classifier,
    "proximity": _proximity,
}
