"""Attention of the newest T positions over a cache of all positions so far.

Per head, with the keys and values of this head from the cache, query t stands at `position` + t and sees every
position up to itself:

(1)  s_tj = q_t · keys_j / √D                    for j ≤ position + t, and with a window position + t − window < j
(2)  y_t = Σ_j p_tj values_j,   p_t = softmax(s_t)

The cache may have fewer heads, G: then H/G heads of queries, side by side, share one. The new positions' own keys and
values must be in it already (`remember`). What lies in it beyond position + t is never looked at, be it old, padding or
NaN. Forward only.
"""

from math import sqrt
from typing import Any

import numpy as np

from tapeless.ops.attention.reference import pairs
from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec


def _refuse(dims: Dims, scalars: Scalars) -> str | None:
    if dims["C"] % (dims["G"] * dims["D"]):
        return f"C={dims['C']} channels are no heads of D={dims['D']} that can share G={dims['G']} heads of keys"
    if dims["T"] > dims["P"]:
        return f"T={dims['T']} queries have no place in a cache of P={dims['P']}"
    return None


SPEC = Spec(
    name="cached_attention",
    shapes={"y": "B T C", "q": "B T C", "keys": "B G P D", "values": "B G P D", "position": "1"},
    roles={"position": "index"},
    meanings={"keys": "cached keys", "values": "cached values", "position": "cached length"},
    forward=Signature(
        writes={"y": "softmax(q·keysᵀ/√D)·values, over the positions so far"},
        reads=("q", "keys", "values", "position"),
        scalars=("window",),
    ),
    refuse=_refuse,
)


def forward(y: Array, q: Array, keys: Array, values: Array, position: Array, window: int) -> None:
    batch, groups, _, width = keys.shape
    time, heads = q.shape[1], q.shape[2] // width
    keys, values = (np.repeat(held, heads // groups, axis=1) for held in (keys, values))
    split = q.reshape(batch, time, heads, width)
    mixed = np.empty_like(split)
    for t in range(time):
        end = int(position[0]) + t + 1
        seen = slice(max(0, end - window) if window else 0, end)
        scores = np.einsum("bhd,bhjd->bhj", split[:, t], keys[:, :, seen]) / sqrt(width)  # (1)
        weights = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed[:, t] = np.einsum("bhj,bhjd->bhd", weights, values[:, :, seen])  # (2)
    y[...] = mixed.reshape(y.shape)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    """With a full cache, which is the most it can be: how full it is stands in a buffer."""
    seen = pairs({"T": dims["T"], "S": dims["P"]}, causal=True, window=scalars["window"])
    return dims["B"] * seen * (4 * dims["C"] + 6 * (dims["C"] // dims["D"]))


def example(rng: np.random.Generator) -> dict[str, Any]:
    batch, heads, groups, held, width, time = 2, 6, 3, 7, 2, 4
    return {
        "q": rng.normal(size=(batch, time, heads * width)),
        "keys": rng.normal(size=(batch, groups, held, width)),
        "values": rng.normal(size=(batch, groups, held, width)),
        "position": np.array([2]),
        "window": 0,
    }
