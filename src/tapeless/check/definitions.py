"""What every op computes, said a second time: element by element, straight from the formula, in no hurry.

A gradient check proves that a backward belongs to its forward. It cannot see that the forward itself is another
function than the one that was meant: attention without 1/√D, a norm without ε, a loss with one. For that there must be
a statement of the forward that shares no line with it. These functions take an op's arguments by name and return its
outputs; of an op that writes into part of something, the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import product
from math import cos, exp, fsum, isinf, isnan, log, pi, prod, sin, sqrt, tanh
from types import SimpleNamespace
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Shape

Outputs = dict[str, Array]


def _each(shape: Shape, element: Callable[..., Any]) -> Array:
    """An array whose elements are a function of their indices."""
    values = [element(*index) for index in product(*map(range, shape))]
    return np.array(values, float).reshape(shape) if prod(shape) else np.zeros(shape)


def _softmax(scores: Sequence[float]) -> tuple[list[float], float]:
    """The weights, and the log of the sum of exponentials."""
    most = max(scores)
    total = fsum(exp(score - most) for score in scores)
    return [exp(score - most) / total for score in scores], most + log(total)


def _dot(a: Array, b: Array) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))


def linear(x: Array, weight: Array, bias: Array | None = None) -> Outputs:
    shift = np.zeros(weight.shape[1]) if bias is None else bias
    return {"y": _each((len(x), weight.shape[1]), lambda r, f: _dot(x[r], weight[:, f]) + shift[f])}


def layernorm(x: Array, weight: Array, bias: Array, eps: float) -> Outputs:
    rows, width = x.shape
    mean = _each((rows,), lambda r: fsum(x[r]) / width)
    rstd = _each((rows,), lambda r: 1 / sqrt(fsum((value - mean[r]) ** 2 for value in x[r]) / width + eps))
    return {
        "y": _each((rows, width), lambda r, c: (x[r, c] - mean[r]) * rstd[r] * weight[c] + bias[c]),
        "mean": mean,
        "rstd": rstd,
    }


def rmsnorm(x: Array, weight: Array, rstd: Shape, eps: float) -> Outputs:
    rows, heads, width = *rstd, len(weight)

    def scale(r: int, h: int) -> float:
        return 1 / sqrt(fsum(x[r, h * width + d] ** 2 for d in range(width)) / width + eps)

    scales = _each(rstd, scale)
    return {
        "y": _each((rows, heads * width), lambda r, c: x[r, c] * scales[r, c // width] * weight[c % width]),
        "rstd": scales,
    }


def rope(x: Array, cos: Array, sin: Array) -> Outputs:
    """As a product of complex numbers: the second of a pair stands half a head further."""
    (_, time, _), (_, held, pairs) = x.shape, cos.shape

    def element(b: int, t: int, c: int) -> float:
        first, second = c - c % (2 * pairs) + c % pairs, c - c % (2 * pairs) + c % pairs + pairs
        place = held - time + t, c % pairs
        turned = complex(x[b, t, first], x[b, t, second]) * complex(cos[b, *place], sin[b, *place])
        return turned.real if c == first else turned.imag

    return {"y": _each(x.shape, element)}


def attention(
    q: Array, k: Array, v: Array, lse: Shape, causal: bool, window: int, starts: Array | None = None
) -> Outputs:
    (batch, queries, channels), keys, heads = q.shape, k.shape[1], lse[1]
    width = channels // heads
    shared_by = heads * width // k.shape[2]
    y, sums = np.zeros(q.shape), np.zeros(lse)
    for b, h, i in product(range(batch), range(heads), range(queries)):
        own, shared = (slice(n * width, (n + 1) * width) for n in (h, h // shared_by))
        ago = [keys - 1 - j - (queries - 1 - i) for j in range(keys)]  # counted from the end; below 0 it is yet to come
        seen = [j for j in range(keys) if not causal or ago[j] >= 0]
        seen = [j for j in seen if not window or ago[j] < window]
        seen = [j for j in seen if starts is None or j >= starts[b, i] or ago[j] <= 0]
        weights, sums[b, h, i] = _softmax([_dot(q[b, i, own], k[b, j, shared]) / sqrt(width) for j in seen])
        y[b, i, own] = sum(weight * v[b, j, shared] for weight, j in zip(weights, seen, strict=True))
    return {"y": y, "lse": sums}


def remember(keys: Array, values: Array, k: Array, v: Array, position: Array) -> Outputs:
    kept = {"keys": keys.copy(), "values": values.copy()}
    batch, heads, _, width = keys.shape
    for b, h, t, d in product(range(batch), range(heads), range(k.shape[1]), range(width)):
        kept["keys"][b, h, int(position[0]) + t, d] = k[b, t, h * width + d]
        kept["values"][b, h, int(position[0]) + t, d] = v[b, t, h * width + d]
    return kept


def cached_attention(q: Array, keys: Array, values: Array, position: Array, window: int) -> Outputs:
    batch, groups, _, width = keys.shape
    heads = q.shape[2] // width
    y = np.zeros(q.shape)
    for b, h, t in product(range(batch), range(heads), range(q.shape[1])):
        own, shared = slice(h * width, (h + 1) * width), h * groups // heads
        place = int(position[0]) + t
        seen = [j for j in range(place + 1) if not window or place - j < window]
        weights, _ = _softmax([_dot(q[b, t, own], keys[b, shared, j]) / sqrt(width) for j in seen])
        y[b, t, own] = sum(weight * values[b, shared, j] for weight, j in zip(weights, seen, strict=True))
    return {"y": y}


def gelu_of(x: float) -> float:
    return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


def swish_of(x: float) -> float:
    return x / (1 + exp(-x))


def random_word(index: int, seed: int, draws: int, site: int) -> int:
    """32 random bits: Philox4x32-10, one counter at a time."""
    low = (1 << 32) - 1
    state = [index // 4, site, draws & low, draws >> 32]
    key = [seed & low, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * state[0], 0xCD9E8D57 * state[2]
        state = [(right >> 32) ^ state[1] ^ key[0], right & low, (left >> 32) ^ state[3] ^ key[1], left & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return state[index % 4]


def drop(x: float, index: int, seed: int, draws: int, rate: float, site: int) -> float:
    return x / (1 - rate) if random_word(index, seed, draws, site) / 2**32 >= rate else 0.0


def classifier(
    x: Array, weight: Array, targets: Array, count: Array, logits: Shape, class_weights: Array | None = None
) -> Outputs:
    losses = []
    for row, target in zip(x, targets, strict=True):
        if target >= 0:
            scores = [_dot(row, word) for word in weight]
            factor = 1.0 if class_weights is None else class_weights[target]
            losses.append(factor * (_softmax(scores)[1] - scores[target]))
    return {"loss": np.array([fsum(losses) / count[0]])}


def squared_error(x: Array, table: Array, targets: Array, count: Array) -> Outputs:
    errors = [(row - table[target]) ** 2 for row, target in zip(x, targets, strict=True) if target >= 0]
    return {"loss": np.array([fsum(np.ravel(errors)) / (count[0] * x.shape[1])])}


def _lengths(values: Array, sections: tuple[int, ...]) -> Array:
    ends = (*sections[1:], len(values))
    return np.array([sqrt(fsum(v * v for v in values[a:b])) for a, b in zip(sections, ends, strict=True)])


def global_norm(gradients: Array, norms: Shape, sections: tuple[int, ...]) -> Outputs:
    return {"norm": np.array([sqrt(fsum(g * g for g in gradients))]), "norms": _lengths(gradients, sections)}


def clip(loss: Array, norm: Array, limit: Array, largest: Array) -> Outputs:
    scale = 1.0 if not norm[0] > limit[0] else float(limit[0]) / float(norm[0])
    bad = isnan(loss[0]) or isinf(loss[0]) or isnan(norm[0]) or isinf(norm[0]) or norm[0] * scale >= largest[0]
    return {"scale": np.array([scale]), "finite": np.array([0 if bad else 1])}


def _by_name(define: Callable[[Any], Outputs]) -> Callable[..., Outputs]:
    """A definition that finds its many arguments under their names, and None under that of a master copy which is not
    given."""
    return wraps(define)(lambda **given: define(SimpleNamespace(**{"master": None} | given)))


def _update(a: Any, change: Array, **moments: Array) -> Outputs:
    """What an update leaves, by what it takes away; where it must not be made, all as it was. A master copy steps in
    place of the weights, which become the same."""
    made, full = bool(a.finite[0]), _full(a)
    stepped = _each(full.shape, lambda n: full[n] - change[n]) if made else None
    moved = _lengths(change, a.sections) if made else np.zeros(len(a.sections))
    copies = {"weights": a.weights if stepped is None else stepped}
    if a.master is not None:
        copies["master"] = a.master if stepped is None else stepped
    kept = {name: after if made else getattr(a, name) for name, after in moments.items()}
    return copies | kept | {"step": a.step + made, "moved": moved, "norms": _lengths(full, a.sections)}


def _full(a: Any) -> Any:
    """The weights in the type in which they step."""
    return a.weights if a.master is None else a.master


@_by_name
def sgd(a: Any) -> Outputs:
    return _update(a, _each(a.weights.shape, lambda n: a.lr[0] * a.scale[0] * a.gradients[n]))


@_by_name
def momentum(a: Any) -> Outputs:
    summed = _each(a.m.shape, lambda n: a.momentum * a.m[n] + a.scale[0] * a.gradients[n])
    return _update(a, _each(a.m.shape, lambda n: a.lr[0] * summed[n]), m=summed)


@_by_name
def adamw(a: Any) -> Outputs:
    t, full = int(a.step[0]) + 1, _full(a)
    first = _each(a.m.shape, lambda n: a.beta1 * a.m[n] + (1 - a.beta1) * a.scale[0] * a.gradients[n])
    second = _each(a.v.shape, lambda n: a.beta2 * a.v[n] + (1 - a.beta2) * (a.scale[0] * a.gradients[n]) ** 2)

    def change(n: int) -> float:
        lost = a.lr[0] * a.decay * full[n] if any(start <= n < stop for start, stop in a.decayed) else 0.0
        mean, size = first[n] / (1 - a.beta1**t), second[n] / (1 - a.beta2**t)
        return float(lost + a.lr[0] * mean / (sqrt(size) + a.eps))

    return _update(a, _each(a.m.shape, change), m=first, v=second)


@_by_name
def muon(a: Any) -> Outputs:
    t, lr, full = int(a.step[0]) + 1, a.lr[0], _full(a)
    first, second, change = a.m.copy(), a.v.copy(), np.zeros(len(a.m))
    gradients = a.scale[0] * a.gradients
    others = set(range(len(a.m))) if a.finite[0] else set[int]()
    for start, rows, widths in a.matrices if a.finite[0] else ():
        for column, width in ((sum(widths[:n]), width) for n, width in enumerate(widths)):
            places = [[start + r * sum(widths) + column + c for c in range(width)] for r in range(rows)]
            for n in (n for row in places for n in row):
                others.discard(n)
                first[n] = a.momentum * a.m[n] + (1 - a.momentum) * gradients[n]
            ahead = [[a.momentum * first[n] + (1 - a.momentum) * gradients[n] for n in row] for row in places]
            nearly = nearly_orthogonal(np.array(ahead))
            for r, row in enumerate(places):
                for c, n in enumerate(row):
                    change[n] = lr * 0.2 * sqrt(max(rows, width)) * nearly[r, c]
    for at, n in enumerate(sorted(others)):
        g = gradients[n]
        first[n], second[at] = a.beta1 * a.m[n] + (1 - a.beta1) * g, a.beta2 * a.v[at] + (1 - a.beta2) * g**2
        change[n] = lr * first[n] / (1 - a.beta1**t) / (sqrt(second[at] / (1 - a.beta2**t)) + a.eps)
    for n in (n for start, stop in a.decayed for n in range(start, stop)):
        change[n] += lr * a.decay * full[n]
    return _update(a, change, m=first, v=second)


def nearly_orthogonal(x: Array) -> Array:
    """By its singular values, each of which goes through the polynomial five times."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    values = values / max(sqrt(fsum(value * value for value in values)), 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    found: Array = left * values @ right
    return found


def sinusoid(positions: int, channels: int) -> Array:
    """Not an op's output, but what `positions` reads where nothing is learned."""

    def element(t: int, c: int) -> float:
        angle = t / 10000 ** ((c - c % 2) / channels)
        return float(np.cos(angle) if c % 2 else np.sin(angle))

    return _each((positions, channels), element)


def turning_rates(
    pairs: int, base: float, scaling: str, factor: float, low: float, high: float, old: int
) -> list[float]:
    """Not an op's output, but what `angles` reads: how far each pair of a head's channels turns from place to place."""

    def slowed(rate: float) -> float:
        if scaling == "linear":
            return rate / factor
        if scaling == "llama3":
            length = 2 * pi / rate  # places until it is round
            if length > old / low:
                return rate / factor
            if length > old / high:
                smooth = (old / length - low) / (high - low)
                return (1 - smooth) * rate / factor + smooth * rate
        return rate

    return [slowed(1 / base ** (2 * a / (2 * pairs))) for a in range(pairs)]


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "embedding": lambda tokens, weight: {
        "y": _each((len(tokens), weight.shape[1]), lambda r, c: weight[int(tokens[r]), c])
    },
    "positions": lambda table, y: {"y": _each(y, lambda b, t, c: table[t, c])},
    "positions_at": lambda table, position, y: {"y": _each(y, lambda b, t, c: table[int(position[0]) + t, c])},
    "linear": linear,
    "adapt": lambda low, weight, scale: {
        "y": _each((len(low), weight.shape[1]), lambda r, f: scale * _dot(low[r], weight[:, f]))
    },
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "angles": lambda places, rates: {
        "cos": _each((*places.shape, len(rates)), lambda b, t, a: cos(int(places[b, t]) * rates[a])),
        "sin": _each((*places.shape, len(rates)), lambda b, t, a: sin(int(places[b, t]) * rates[a])),
    },
    "rope": rope,
    "attention": attention,
    "remember": remember,
    "cached_attention": cached_attention,
    "gelu": lambda x: {"y": _each(x.shape, lambda r, f: gelu_of(float(x[r, f])))},
    "relu": lambda x: {"y": _each(x.shape, lambda r, f: x[r, f] if x[r, f] > 0 else 0.0)},
    "tanh": lambda x: {"y": _each(x.shape, lambda r, f: tanh(x[r, f]))},
    "swiglu": lambda gate, up: {"y": _each(gate.shape, lambda r, f: up[r, f] * swish_of(float(gate[r, f])))},
    "residual": lambda x, branch: {"y": _each(x.shape, lambda r, c: x[r, c] + branch[r, c])},
    "count_draws": lambda draws: {"draws": np.array([int(draws[0]) + 1])},
    "dropout": lambda x, seed, draws, rate, site: {
        "y": _each(
            x.shape,
            lambda r, c: drop(float(x[r, c]), r * x.shape[1] + c, int(seed[0]), int(draws[0]), rate, site),
        )
    },
    "last_position": lambda x: {"y": _each((len(x), 1, x.shape[2]), lambda b, t, c: x[b, x.shape[1] - 1, c])},
    "classifier": classifier,
    "squared_error": squared_error,
    "unembed": lambda x, weight: {"y": _each((len(x), len(weight)), lambda r, v: _dot(x[r], weight[v]))},
    "proximity": lambda x, weight: {"y": _each((len(x), len(weight)), lambda r, v: -fsum((x[r] - weight[v]) ** 2))},
    "zero": lambda y: {"y": np.zeros(y)},
    "global_norm": global_norm,
    "clip": clip,
    "sgd": sgd,
    "momentum": momentum,
    "adamw": adamw,
    "muon": muon,
}
