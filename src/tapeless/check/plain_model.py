"""The transformer once more, straight from its formulas and one sequence at a time: no ops, no list, no backward.

It says what a model should compute, independently of `models/` and `ops/`, and names every value as the program's
buffers are named, so that the first value that differs tells where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tapeless.check.definitions import drop, gelu_of, sinusoid
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array

Weights = Mapping[str, Array]
Values = dict[str, Array]  # by buffer name, each B × T × width

ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "gelu": np.vectorize(gelu_of),
    "relu": lambda x: x * (x > 0),
    "tanh": np.tanh,
}


Drop = Callable[[int, Array], Array]  # by site: 0 after the embedding, then two for every block


@dataclass(frozen=True)
class Dropping:
    """What is left out while a model learns, and by which random numbers."""

    rate: float
    seed: int
    draws: int

    def __call__(self, config: Architecture, sequence: int, site: int, x: Array) -> Array:
        """Of the last block, where only the last position is read, no other has random numbers."""
        alone = config.readout == "last" and site > 2 * config.layers - 2
        rows = x[-1:] if alone else x
        y = x.copy()
        for t, c in np.ndindex(rows.shape):
            index = ((sequence * len(rows)) + t) * config.channels + c
            y[len(x) - len(rows) + t, c] = drop(float(rows[t, c]), index, self.seed, self.draws, self.rate, site)
        return y


def forward(config: Architecture, weights: Weights, inputs: Array, dropping: Dropping | None = None) -> Values:
    """Every activation. Also where a model reads out the last position only, all positions are here."""
    drops = [partial(dropping, config, n) if dropping else None for n in range(len(inputs))]
    sequences = [_sequence(config, weights, *each) for each in zip(inputs, drops, strict=True)]
    return {name: np.stack([values[name] for values in sequences]) for name in sequences[0]}


def _sequence(c: Architecture, w: Weights, inputs: Array, drop: Drop | None) -> Values:
    table = w["positions.weight"] if c.positions == "learned" else sinusoid(c.context, c.channels)
    start = inputs @ w["input.weight"] + w["input.bias"] if c.features else w["tokens.weight"][inputs]
    x = start + table[: len(inputs)]
    values = {"x": x}
    if drop:
        x = values["x.dropped"] = drop(0, x)
    for n in range(c.layers):
        block = {name.removeprefix(f"blocks.{n}."): w[name] for name in w if name.startswith(f"blocks.{n}.")}
        inside, x = _block(c, block, x, partial(_drop_in_block, drop, n) if drop else None)
        values |= {f"blocks.{n}.{name}": value for name, value in inside.items()}
    if c.placement == "pre":
        x = values["norm"] = _norm(c, w, "norm", x)
    values["state"] = x
    return values


def _drop_in_block(drop: Drop, n: int, part: int, x: Array) -> Array:
    return drop(2 * n + part, x)


def _block(c: Architecture, w: Weights, x: Array, drop: Drop | None) -> tuple[Values, Array]:
    s: Values = {}
    pre = c.placement == "pre"
    if pre:
        s["norm1"] = _norm(c, w, "norm1", x)
    s["attn.qkv"] = _affine(w, "attn.qkv", s["norm1"] if pre else x)
    s["attn.mix"] = _attention(c, s["attn.qkv"])
    s["attn.proj"] = _affine(w, "attn.proj", s["attn.mix"])
    if drop:
        s["attn.proj.dropped"] = drop(1, s["attn.proj"])
    s["sum1"] = x + s["attn.proj.dropped" if drop else "attn.proj"]
    if pre:
        s["norm2"] = _norm(c, w, "norm2", s["sum1"])
    else:
        s["norm1"] = _norm(c, w, "norm1", s["sum1"])
    s["mlp.up"] = _affine(w, "mlp.up", s["norm2"] if pre else s["norm1"])
    s["mlp.act"] = ACTIVATIONS[c.activation](s["mlp.up"])
    s["mlp.down"] = _affine(w, "mlp.down", s["mlp.act"])
    if drop:
        s["mlp.down.dropped"] = drop(2, s["mlp.down"])
    s["sum2"] = (s["sum1"] if pre else s["norm1"]) + s["mlp.down.dropped" if drop else "mlp.down"]
    if not pre:
        s["norm2"] = _norm(c, w, "norm2", s["sum2"])
    return s, s["sum2"] if pre else s["norm2"]


def _affine(w: Weights, name: str, x: Array) -> Array:
    y: Array = x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)
    return y


def _norm(c: Architecture, w: Weights, name: str, x: Array) -> Array:
    centred = x - x.sum(axis=-1, keepdims=True) / c.channels
    spread = np.sqrt((centred**2).sum(axis=-1, keepdims=True) / c.channels + c.norm_eps)
    y: Array = centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]
    return y


def _attention(c: Architecture, qkv: Array) -> Array:
    time, width = len(qkv), c.channels // c.heads
    q, k, v = (qkv[:, part * c.channels :][:, : c.channels].reshape(time, c.heads, width) for part in range(3))
    y = np.zeros((time, c.heads, width))
    for t in range(time):
        seen = t + 1 if c.causal else time
        scores = np.einsum("hd,shd->sh", q[t], k[:seen]) / np.sqrt(width)
        weights = np.exp(scores - scores.max(axis=0))
        y[t] = np.einsum("sh,shd->hd", weights / weights.sum(axis=0), v[:seen])
    return y.reshape(time, c.channels)


def scores(config: Architecture, weights: Weights, values: Values) -> Array:
    """Of every word; (B, vocab) where the model answers once."""
    state = values["state"][:, -1] if config.readout == "last" else values["state"]
    tokens = weights["tokens.weight"] if config.tied else weights["head.weight"]
    if config.loss == "cross_entropy":
        products: Array = state @ tokens.T
        return products
    distances: Array = -((state[..., None, :] - tokens) ** 2).sum(axis=-1)
    return distances


def loss(
    config: Architecture, weights: Weights, values: Values, targets: Array, class_weights: tuple[float, ...] | None
) -> float:
    """The mean over the targets that are not −1, each as often as its class weighs."""
    table = scores(config, weights, values).reshape(-1, config.vocab)
    rows = [(row, target) for row, target in zip(table, targets.reshape(-1), strict=True) if target >= 0]
    if config.loss == "squared_error":
        return float(-sum(row[target] for row, target in rows) / (len(rows) * config.channels))
    weigh = class_weights or (1.0,) * config.vocab
    losses = [weigh[target] * (np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]) for row, target in rows]
    return float(sum(losses) / sum(weigh[target] for _, target in rows))
