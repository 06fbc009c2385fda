"""Multi-head attention: each query averages the values, weighted by how well the keys match it.

Per head, with D = C/H channels of q, k, v (heads stand side by side in the channels):

(1)  s_ij = q_i · k_j / √D                     for the pairs the mask allows
(2)  lse_i = log Σ_j exp(s_ij),   p_ij = exp(s_ij − lse_i) = exp(s_ij − m_i) / Σ_k exp(s_ik − m_i)
(3)  y_i = Σ_j p_ij v_j

Causal: the T queries are the *last* T of the S positions, so query i, at o = i + (S − T), sees the keys j ≤ o; with a
window, those of o − window < j; with starts, those of starts_i ≤ j, where its document begins, itself in any case.
k and v may have fewer heads, G: then H/G queries' heads, side by side, share one, whose gradient is the sum of theirs.
The backward rebuilds p from (1) and (2), with m_i = max_j s_ij: a large lse_i has lost what s_ij − lse_i would need.

(4)  dv_j = Σ_i p_ij dy_i,   dp_ij = dy_i · v_j

From ∂p_ij/∂s_ik = p_ij (δ_jk − p_ik), ds_ij = p_ij (dp_ij − Σ_k p_ik dp_ik), and the sum is dy_i · y_i:

(5)  ds_ij = p_ij (dp_ij − dy_i · y_i)

(6)  dq_i = Σ_j ds_ij k_j / √D,   dk_j = Σ_i ds_ij q_i / √D
"""

from math import sqrt
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec


def _refuse(dims: Dims, scalars: Scalars) -> str | None:
    if dims["C"] % dims["H"]:
        return f"C={dims['C']} channels cannot be split over H={dims['H']} heads"
    width = dims["C"] // dims["H"]
    if dims["E"] % width or dims["H"] % (dims["E"] // width):
        return f"E={dims['E']} channels of keys are no heads of {width} that H={dims['H']} heads of queries can share"
    if scalars["causal"] and dims["T"] > dims["S"]:
        return f"causal attention needs at least as many keys as queries, not T={dims['T']} for S={dims['S']}"
    if scalars["window"] < 0 or (scalars["window"] and not scalars["causal"]):
        return f"a window of {scalars['window']} has no meaning here: it is the newest keys that a causal query sees"
    return None


SPEC = Spec(
    name="attention",
    shapes={"y": "B T C", "lse": "B H T", "q": "B T C", "k": "B S E", "v": "B S E", "starts": "B T"},
    roles={"lse": "statistic", "starts": "index"},
    meanings={"starts": "segment starts"},
    forward=Signature(
        writes={"y": "softmax(q·kᵀ/√D)·v", "lse": "log Σ_S exp(q·kᵀ/√D)"},
        reads=("q", "k", "v", "starts"),
        scalars=("causal", "window"),
        optional=("starts",),
    ),
    backward=Signature(
        writes={
            "dq": "ds·k/√D, ds = p·(dp − Σ_S p·dp), dp = dy·vᵀ",
            "dk": "dsᵀ·q/√D",
            "dv": "pᵀ·dy",
        },
        reads=("dy", "q", "k", "v", "y", "lse", "starts"),
        scalars=("causal", "window"),
        optional=("starts",),
    ),
    refuse=_refuse,
)


def _split(x: Array, heads: int) -> Array:
    """B T C → B H T D"""
    batch, time, channels = x.shape
    return x.reshape(batch, time, heads, channels // heads).swapaxes(1, 2)


def _join(x: Array) -> Array:
    """B H T D → B T C"""
    batch, heads, time, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, time, heads * width)


def _shared(x: Array, heads: int, width: int) -> Array:
    """B S E → B H S D: each head of keys or values once for every head of queries that shares it."""
    own = _split(x, x.shape[2] // width)
    return np.repeat(own, heads // own.shape[1], axis=1)


def _summed(x: Array, like: Array) -> Array:
    """B H S D → B S E: what the heads of queries that share one head send back to it."""
    batch, heads, time, width = x.shape
    groups = like.shape[2] // width
    return _join(x.reshape(batch, groups, heads // groups, time, width).sum(axis=2))


def _visible(queries: int, keys: int, causal: bool, window: int, starts: Array | None) -> Array:
    """T S, or B 1 T S where documents begin at different places."""
    own, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    visible = key <= own if causal else np.ones((queries, keys), bool)
    if window:
        visible = visible & (key > own - window)
    return visible if starts is None else visible & (key >= np.minimum(starts[:, None, :, None], own))


def _by_head(q: Array, k: Array, v: Array, heads: int) -> tuple[Array, Array, Array]:
    width = q.shape[2] // heads
    return _split(q, heads), _shared(k, heads, width), _shared(v, heads, width)


def _scores(q: Array, k: Array) -> Array:
    """(1)"""
    return q @ k.swapaxes(2, 3) / sqrt(q.shape[3])


def _weights(scores: Array, shift: Array, visible: Array) -> Array:
    """exp(s − shift) where visible, else 0; the masked scores never reach exp, where they could overflow."""
    return np.where(visible, np.exp(np.where(visible, scores - shift[..., None], 0)), 0)


def _softmax(scores: Array, visible: Array) -> tuple[Array, Array]:
    """(2): p and lse."""
    # The largest score is taken on the real parts: the result does not depend on it, so it stays analytic.
    largest = np.where(visible, scores.real, -np.inf).max(axis=-1)
    weights = _weights(scores, largest, visible)
    total = weights.sum(axis=-1)
    return weights / total[..., None], largest + np.log(total)


def forward(
    y: Array, lse: Array, q: Array, k: Array, v: Array, starts: Array | None, causal: bool, window: int
) -> None:
    q, k, v = _by_head(q, k, v, lse.shape[1])
    visible = _visible(q.shape[2], k.shape[2], causal, window, starts)
    p, lse[...] = _softmax(_scores(q, k), visible)  # (1) (2)
    y[...] = _join(p @ v)  # (3)


def backward(
    dq: Array,
    dk: Array,
    dv: Array,
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    starts: Array | None,
    causal: bool,
    window: int,
) -> None:
    heads = lse.shape[1]
    y, dy = _split(y, heads), _split(dy, heads)
    q, k, v = _by_head(q, k, v, heads)
    p, _ = _softmax(_scores(q, k), _visible(q.shape[2], k.shape[2], causal, window, starts))  # (1) (2)
    dv[...] = _summed(p.swapaxes(2, 3) @ dy, dv)  # (4)
    dp = dy @ v.swapaxes(2, 3)
    ds = p * (dp - (dy * y).sum(axis=-1, keepdims=True))  # (5)
    scale = 1 / sqrt(q.shape[3])
    dq[...] = _join(ds @ k) * scale  # (6)
    dk[...] = _summed(ds.swapaxes(2, 3) @ q, dk) * scale


def weights(q: Array, k: Array, heads: int, starts: Array | None, causal: bool, window: int) -> Array:
    """p alone, (B H T S), for whoever wants to see it: nothing keeps it."""
    q, k, _ = _by_head(q, k, k, heads)
    return _softmax(_scores(q, k), _visible(q.shape[2], k.shape[2], causal, window, starts))[0]  # (1) (2)


def pulls(
    dy: Array, q: Array, k: Array, v: Array, heads: int, starts: Array | None, causal: bool, window: int
) -> tuple[Array, Array]:
    """p and ds, (B H T S), for whoever wants to see them: the gradient of every score, which nothing keeps either."""
    dy = _split(dy, heads)
    q, k, v = _by_head(q, k, v, heads)
    p, _ = _softmax(_scores(q, k), _visible(q.shape[2], k.shape[2], causal, window, starts))  # (1) (2)
    dp = dy @ v.swapaxes(2, 3)
    return p, p * (dp - (p * dp).sum(axis=-1, keepdims=True))  # (5)


def pairs(dims: Dims, causal: bool, window: int) -> int:
    """How many (query, key) pairs one head of one sequence looks at, where it is one document."""
    queries, keys = dims["T"], dims["S"]
    if not causal:
        return queries * keys
    seen = range(keys - queries + 1, keys + 1)
    return sum(min(window, each) for each in seen) if window else sum(seen)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    products = 2 if direction == "forward" else 5  # s, y; and s again, dp, dv, dq, dk
    return dims["B"] * pairs(dims, scalars["causal"], scalars["window"]) * (2 * products * dims["C"] + 6 * dims["H"])


def example(rng: np.random.Generator) -> dict[str, Any]:
    batch, queries, keys, heads, groups, width = 2, 3, 5, 4, 2, 3
    return {
        "q": rng.normal(size=(batch, queries, heads * width)),
        "k": rng.normal(size=(batch, keys, groups * width)),
        "v": rng.normal(size=(batch, keys, groups * width)),
        "lse": (batch, heads, queries),
        "causal": True,
        "window": 0,
    }
