"""Where a result is small because its terms cancel by nature, so that neither its own size nor how far it moves with
its inputs shows what it was made of: the size of those terms, by which its error is measured in `check/ranges.py`. An
op that is not here is measured by its result and its inputs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.check.examples import Example
from tapeless.ops.contract import Array

Arrays = dict[str, Array]
Sizes = dict[str, Any]

# The exp of a kernel is 0 below 2⁻¹²⁶: weights that small are lost, whatever they are multiplied by.
LOST_WEIGHT = 2.0**-100  # times a rounding of 2⁻²⁴, over four such weights
# The reference itself has 1 + tanh and 1 − tanh² only to float64's last digit of 1.
LOST_DIGIT = 2.0**-52 / 2.0**-24
# One key of an attention has all the weight where the others have this much; then ds is this share of dp at most.
ONE_KEY, ALL_THE_WEIGHT = 2.0**-40, 2.0**-14
# Norms that an update makes on its way are squared in float32: what is not within these is not asked of them.
SQUARED = dict.fromkeys(("sgd", "momentum", "adamw", "muon"), ("moved", "norms"))
SQUARED_FROM, SQUARED_TO = 2.0**-50, 2.0**50
# What a backward is given and need not use: attention's sum over p·dp is dy · y, but that has another rounding.
NOT_MOVED = {"attention": ("y",)}


def _tanh(a: Arrays, example: Example) -> Sizes:
    return {"dx": LOST_DIGIT * np.abs(a["dy"])} if "dy" in a else {}


def _gelu(a: Arrays, example: Example) -> Sizes:
    """Its slope has a factor 1 − tanh² times x³, where that is not yet 0 at most 100."""
    sizes = {"y": LOST_DIGIT * np.abs(a["x"])}
    return sizes | ({"dx": 100 * LOST_DIGIT * np.abs(a["dy"])} if "dy" in a else {})


def _attention(a: Arrays, example: Example) -> Sizes:
    """ds = p · (dp − Σ p·dp). Where one key has all the weight the two are the same number, not only nearly so: what is
    left is as small as the other weights, and a kernel that subtracts differently rounded numbers shows."""
    largest = {name: np.abs(array).max() for name, array in a.items()}
    sizes: Sizes = {"y": LOST_WEIGHT * largest["v"], "lse": 1.0}  # a logarithm beside the largest score
    if "dy" not in a:
        return sizes
    heads = example["lse"][1]
    groups = heads * a["k"].shape[2] // a["q"].shape[2]
    q, dy = (_by_head(a[name], heads) for name in ("q", "dy"))
    k, v = (np.repeat(_by_head(a[name], groups), heads // groups, axis=1) for name in ("k", "v"))
    queries, keys, width = q.shape[2], k.shape[2], q.shape[3]
    visible = np.tril(np.ones((queries, keys), bool), keys - queries if example["causal"] else keys)
    own, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    if example["window"]:
        visible = visible & (key > own - example["window"])
    if "starts" in a:
        visible = visible & (key >= np.minimum(a["starts"][:, None, :, None], own))
    scores = np.where(visible, q @ k.swapaxes(2, 3) / np.sqrt(width), -np.inf)
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    others = np.sort(p, axis=3)[..., :-1].sum(axis=3, keepdims=True)  # beside the largest, which is 1
    p /= p.sum(axis=3, keepdims=True)
    dp = np.where(visible, np.abs(dy) @ np.abs(v).swapaxes(2, 3), 0)
    saturated = ALL_THE_WEIGHT * dp.max(axis=3, keepdims=True)
    ds = p * np.where(others < ONE_KEY, saturated, dp + (p * dp).sum(axis=3, keepdims=True)) / np.sqrt(width)
    slope = LOST_WEIGHT * a["dy"].shape[2] * largest["dy"] * largest["v"]
    dq, dk = ds @ np.abs(k) + slope * largest["k"], ds.swapaxes(2, 3) @ np.abs(q) + slope * largest["q"]
    shared = dk.reshape(len(dk), groups, heads // groups, keys, width).sum(axis=2)
    joined = {name: x.swapaxes(1, 2).reshape(a[name[1:]].shape) for name, x in (("dq", dq), ("dk", shared))}
    return sizes | {"dv": LOST_WEIGHT * largest["dy"]} | joined


def _swiglu(a: Arrays, example: Example) -> Sizes:
    """Its sigmoid is lost below 2⁻¹²⁶, where gate is about −88 and is multiplied with it."""
    if "dy" not in a:
        return {"y": 100 * LOST_WEIGHT * np.abs(a["up"])}
    return {"dgate": 100 * LOST_WEIGHT * np.abs(a["dy"] * a["up"]), "dup": 100 * LOST_WEIGHT * np.abs(a["dy"])}


def _by_head(x: Array, heads: int) -> Array:
    """B T C → B H T D"""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _cached_attention(a: Arrays, example: Example) -> Sizes:
    return {"y": LOST_WEIGHT * np.abs(a["values"]).max()}


def _classifier(a: Arrays, example: Example) -> Sizes:
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
    # A row that is nearly right adds the logarithm of nearly 1 to the loss.
    return {"loss": np.abs(share).sum(keepdims=True), "dx": dz @ np.abs(a["weight"]), "dweight": dz.T @ np.abs(a["x"])}


def _proximity(a: Arrays, example: Example) -> Sizes:
    """−‖x − weight‖² by products and squares, because that is a matrix product."""
    squares = (a["x"] ** 2).sum(axis=1)[:, None] + (a["weight"] ** 2).sum(axis=1)
    return {"y": squares + 2 * np.abs(a["x"]) @ np.abs(a["weight"]).T}


TERMS: dict[str, Callable[[Arrays, Example], Sizes]] = {
    "tanh": _tanh,
    "gelu": _gelu,
    "swiglu": _swiglu,
    "attention": _attention,
    "cached_attention": _cached_attention,
    "classifier": _classifier,
    "proximity": _proximity,
}
