"""Multi-head attention: each query averages the values, weighted by how well the keys match it.

Per head, with D = C/H channels of q, k, v (heads stand side by side in the channels):

(1)  s_ij = q_i · k_j / √D                     for the pairs the mask allows
(2)  lse_i = log Σ_j exp(s_ij),   p_ij = exp(s_ij − lse_i) = exp(s_ij − m_i) / Σ_k exp(s_ik − m_i)
(3)  y_i = Σ_j p_ij v_j

Causal: the T queries are the *last* T of the S positions, so query i sees the keys j ≤ i + (S − T).
The backward rebuilds p from (1) and (2), with m_i = max_j s_ij: a large lse_i has lost to rounding what s_ij − lse_i
would need. With dy given:

(4)  dv_j = Σ_i p_ij dy_i,   dp_ij = dy_i · v_j

The softmax of row i has ∂p_ij/∂s_ik = p_ij (δ_jk − p_ik), hence ds_ij = p_ij (dp_ij − Σ_k p_ik dp_ik), and
the sum is Σ_k p_ik (dy_i · v_k) = dy_i · y_i, which needs no T×S array:

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
    if scalars["causal"] and dims["T"] > dims["S"]:
        return f"causal attention needs at least as many keys as queries, not T={dims['T']} for S={dims['S']}"
    return None


SPEC = Spec(
    name="attention",
    shapes={"y": "B T C", "lse": "B H T", "q": "B T C", "k": "B S C", "v": "B S C"},
    roles={"lse": "statistic"},
    forward=Signature(
        writes={"y": "softmax(q·kᵀ/√D)·v", "lse": "log Σ_S exp(q·kᵀ/√D)"},
        reads=("q", "k", "v"),
        scalars=("causal",),
    ),
    backward=Signature(
        writes={
            "dq": "ds·k/√D, ds = p·(dp − Σ_S p·dp), dp = dy·vᵀ",
            "dk": "dsᵀ·q/√D",
            "dv": "pᵀ·dy",
        },
        reads=("dy", "q", "k", "v", "y", "lse"),
        scalars=("causal",),
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


def _visible(queries: int, keys: int, causal: bool) -> Array:
    everything = np.ones((queries, keys), bool)
    return np.tril(everything, keys - queries) if causal else everything


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


def forward(y: Array, lse: Array, q: Array, k: Array, v: Array, causal: bool) -> None:
    heads = lse.shape[1]
    q, k, v = _split(q, heads), _split(k, heads), _split(v, heads)
    visible = _visible(q.shape[2], k.shape[2], causal)
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
    causal: bool,
) -> None:
    heads = lse.shape[1]
    q, k, v, y, dy = (_split(x, heads) for x in (q, k, v, y, dy))
    p, _ = _softmax(_scores(q, k), _visible(q.shape[2], k.shape[2], causal))  # (1) (2)
    dv[...] = _join(p.swapaxes(2, 3) @ dy)  # (4)
    dp = dy @ v.swapaxes(2, 3)
    ds = p * (dp - (dy * y).sum(axis=-1, keepdims=True))  # (5)
    scale = 1 / sqrt(q.shape[3])
    dq[...] = _join(ds @ k) * scale  # (6)
    dk[...] = _join(ds.swapaxes(2, 3) @ q) * scale


def weights(q: Array, k: Array, heads: int, causal: bool) -> Array:
    """p alone, (B H T S), for whoever wants to see it: nothing keeps it."""
    q, k = _split(q, heads), _split(k, heads)
    return _softmax(_scores(q, k), _visible(q.shape[2], k.shape[2], causal))[0]  # (1) (2)


def pairs(dims: Dims, causal: bool) -> int:
    """How many (query, key) pairs one head of one sequence looks at."""
    queries, keys = dims["T"], dims["S"]
    return queries * keys - queries * (queries - 1) // 2 if causal else queries * keys


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    products = 2 if direction == "forward" else 5  # s, y; and s again, dp, dv, dq, dk
    return dims["B"] * pairs(dims, scalars["causal"]) * (2 * products * dims["C"] + 6 * dims["H"])


def example(rng: np.random.Generator) -> dict[str, Any]:
    batch, queries, keys, heads, channels = 2, 3, 5, 2, 6
    return {
        "q": rng.normal(size=(batch, queries, channels)),
        "k": rng.normal(size=(batch, keys, channels)),
        "v": rng.normal(size=(batch, keys, channels)),
        "lse": (batch, heads, queries),
        "causal": True,
    }
