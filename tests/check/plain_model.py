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

from tapeless.check.definitions import drop, gelu_of, sinusoid, swish_of, turning_rates
from tapeless.inputs import Packed, unpacked
from tapeless.models.adapters import adapters_of
from tapeless.models.config import Architecture, Preset
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

    def __call__(self, config: Architecture, sequence: int, time: int, begin: int, site: int, x: Array) -> Array:
        """A document that begins so far into its row of `time` positions. Of the last block, where only the last
        position is read, no other has random numbers."""
        alone = config.readout == "last" and site > 2 * config.layers - 2
        rows, time, begin = (x[-1:], 1, 0) if alone else (x, time, begin)
        y = x.copy()
        for t, c in np.ndindex(rows.shape):
            index = (sequence * time + begin + t) * config.channels + c
            y[len(x) - len(rows) + t, c] = drop(float(rows[t, c]), index, self.seed, self.draws, self.rate, site)
        return y


def forward(config: Architecture, weights: Weights, inputs: Array | Packed, dropping: Dropping | None = None) -> Values:
    """Every activation. Also where a model reads out the last position only, all positions are here. Of documents that
    share a row each is computed by itself, as if there were no others."""
    tokens, segments = unpacked(inputs)
    together = []
    for n, row in enumerate(tokens):
        parts = []
        for begin, document in _documents(row, None if segments is None else segments[n]):
            drops = partial(dropping, config, n, len(row), begin) if dropping else None
            parts.append(_sequence(config, weights, document, drops))
        together.append({name: np.concatenate([each[name] for each in parts]) for name in parts[0]})
    return {name: np.stack([values[name] for values in together]) for name in together[0]}


def adapted(preset: Preset, weights: Weights) -> Weights:
    """The weights as they work: where a projection has an adapter, W[i, j] + alpha / rank · Σ_m A[i, m] · B[m, j]."""
    adapters, found = adapters_of(preset), dict(weights)
    if adapters is None or preset.lora is None:
        return weights
    factor = 2.0 if preset.lora_alpha is None else preset.lora_alpha / preset.lora
    for n in range(preset.architecture.layers):
        for name, widths in _projections(preset.architecture).items():
            path, columns, a_columns, b_columns = f"blocks.{n}.{name}", 0, 0, 0
            for part, width in widths.items():
                if f"blocks.{n}.{part}" in adapters.targets:
                    a = weights[f"{path}.lora_a"][:, a_columns : a_columns + preset.lora]
                    b = weights[f"{path}.lora_b"][:, b_columns : b_columns + width]
                    whole = np.array(found[f"{path}.weight"])
                    whole[:, columns : columns + width] += factor * np.einsum("im,mj->ij", a, b)
                    found[f"{path}.weight"] = whole
                    a_columns, b_columns = a_columns + preset.lora, b_columns + width
                columns += width
    return found


def _projections(c: Architecture) -> dict[str, dict[str, int]]:
    """What lies side by side in each matrix of a block, as it is published: of GPT-2, q, k and v are one."""
    q, k = c.heads * c.head_channels, c.key_heads * c.head_channels
    together = {"attn.qkv": q + 2 * k} if c.positions != "rotary" else {"attn.q": q, "attn.k": k, "attn.v": k}
    gated = c.activation == "swiglu"
    up = {"mlp.gate_up": {"mlp.gate": c.width, "mlp.up": c.width}} if gated else {"mlp.up": {"mlp.up": c.width}}
    return {"attn.qkv": together, "attn.proj": {"attn.proj": c.channels}, **up, "mlp.down": {"mlp.down": c.channels}}


def _documents(row: Array, segments: Array | None) -> list[tuple[int, Array]]:
    """Each with where it begins."""
    begins = [0] if segments is None else [0, *(np.flatnonzero(np.diff(segments)) + 1)]
    return list(zip(begins, np.split(row, begins[1:]), strict=True))


def _sequence(c: Architecture, w: Weights, inputs: Array, drop: Drop | None) -> Values:
    x = inputs @ w["input.weight"] + w["input.bias"] if c.features else w["tokens.weight"][inputs]
    if c.positions != "rotary":
        table = w["positions.weight"] if c.positions == "learned" else sinusoid(c.context, c.channels)
        x = x + table[: len(inputs)]
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
    s["attn.mix"] = _attention(c, w, s)
    s["attn.proj"] = _affine(w, "attn.proj", s["attn.mix"])
    if drop:
        s["attn.proj.dropped"] = drop(1, s["attn.proj"])
    s["sum1"] = x + s["attn.proj.dropped" if drop else "attn.proj"]
    if pre:
        s["norm2"] = _norm(c, w, "norm2", s["sum1"])
    else:
        s["norm1"] = _norm(c, w, "norm1", s["sum1"])
    read = s["norm2"] if pre else s["norm1"]
    if c.activation == "swiglu":
        s["mlp.gate_up"] = _affine(w, "mlp.gate_up", read)
        gate, up = np.split(s["mlp.gate_up"], 2, axis=1)
        s["mlp.act"] = np.vectorize(swish_of)(gate) * up
    else:
        s["mlp.up"] = _affine(w, "mlp.up", read)
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
    if c.norm_kind == "rmsnorm":
        return _root_mean_square(c, w[f"{name}.weight"], x)
    centred = x - x.sum(axis=-1, keepdims=True) / c.channels
    spread = np.sqrt((centred**2).sum(axis=-1, keepdims=True) / c.channels + c.norm_eps)
    y: Array = centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]
    return y


def _root_mean_square(c: Architecture, weight: Array, x: Array) -> Array:
    y: Array = x / np.sqrt((x**2).sum(axis=-1, keepdims=True) / x.shape[-1] + c.norm_eps) * weight
    return y


def _attention(c: Architecture, w: Weights, s: Values) -> Array:
    qkv, time, heads = s["attn.qkv"], len(s["attn.qkv"]), (c.heads, c.key_heads, c.key_heads)
    width = qkv.shape[1] // sum(heads)
    ends = np.cumsum(heads)[:2] * width
    q, k, v = (part.reshape(time, -1, width) for part in np.split(qkv, ends, axis=1))
    if c.query_key_norm:
        q, k = (_root_mean_square(c, w[f"attn.{name}_norm.weight"], x) for name, x in (("q", q), ("k", k)))
        s["attn.q_norm"], s["attn.k_norm"] = q.reshape(time, -1), k.reshape(time, -1)
    if c.positions == "rotary":
        q, k = _turned(c, q), _turned(c, k)
        s["attn.q_turned"], s["attn.k_turned"] = q.reshape(time, -1), k.reshape(time, -1)
    y = np.zeros((time, c.heads, width))
    for t in range(time):
        last = t + 1 if c.causal else time
        first = max(0, last - c.window) if c.window else 0
        for h in range(c.heads):
            own = h * c.key_heads // c.heads
            scores = k[first:last, own] @ q[t, h] / np.sqrt(width)
            weights = np.exp(scores - scores.max())
            y[t, h] = weights / weights.sum() @ v[first:last, own]
    return y.reshape(time, -1)


def _turned(c: Architecture, x: Array) -> Array:
    """As products of complex numbers, whose parts stand half a head apart."""
    bands = (c.rope_scaling, c.rope_factor, c.rope_low, c.rope_high, c.rope_old_context)
    rates = np.array(turning_rates(x.shape[2] // 2, c.rope_base, *bands))
    turn = np.exp(1j * np.arange(len(x))[:, None] * rates)[:, None]
    first, second = np.split(x, 2, axis=2)
    product = (first + 1j * second) * turn
    return np.concatenate([product.real, product.imag], axis=2)


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
