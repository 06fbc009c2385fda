"""Bugs of attention: the scale, the mask, the softmax, the heads."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from tapeless.check.planted import attention_parts, dk_of, dq_of, scaled_scores, softmax_slope
from tapeless.ops.attention.reference import _by_head, _join, _split, _summed, _visible, _weights
from tapeless.ops.contract import Array
from tests.bugs.planting import Bug, backward, forward, helper


def _masked(mask: Any) -> dict[str, Any]:
    """All three gradients from another mask than the forward's."""

    def parts(a: Any) -> tuple[Any, ...]:
        return attention_parts(a, mask(a.q.shape[1], a.k.shape[1], a.causal, a.window, a.starts))

    def dq(a: Any) -> Any:
        _, k, _, _, ds, scale = parts(a)
        return dq_of(ds, k, scale)

    def dk(a: Any) -> Any:
        q, _, _, _, ds, scale = parts(a)
        return dk_of(ds, q, scale, a)

    def dv(a: Any) -> Any:
        return _summed(parts(a)[2].swapaxes(2, 3) @ _split(a.dy, a.lse.shape[1]), a.v)

    return {"dq": dq, "dk": dk, "dv": dv}


def _no_mask(queries: int, keys: int, *asked: Any) -> Array:
    return np.ones((queries, keys), bool)


def _top_left(queries: int, keys: int, causal: bool, *limits: Any) -> Array:
    """As if there were as many keys as queries: what comes after those is never seen."""
    square = _visible(queries, queries, causal, *limits)
    later = np.zeros((*square.shape[:-1], max(0, keys - queries)), bool)
    return np.concatenate([square[..., :keys], later], axis=-1) if causal else _no_mask(queries, keys)


def _one_ahead(queries: int, keys: int, causal: bool, *limits: Any) -> Array:
    seen, ahead = _visible(queries, keys, causal, *limits), np.eye(queries, keys, keys - queries + 1, dtype=bool)
    return seen | ahead if causal else seen


def _untransposed_dk(a: Any) -> Any:
    q, _, _, _, ds, scale = attention_parts(a)
    return _summed(ds @ q, a.k) * scale


def _swapped(which: str) -> Any:
    def gradient(a: Any) -> Any:
        q, k, _, _, ds, scale = attention_parts(a)
        return _join(ds.swapaxes(2, 3) @ q) * scale if which == "dq" else _summed(ds @ k, a.k) * scale

    return gradient


def _interleaved(a: Any) -> Any:
    _, k, _, _, ds, scale = attention_parts(a)
    right = ds @ k * scale  # B H T D
    return right.transpose(0, 2, 3, 1).reshape(a.q.shape)


def _dv_of_slopes(a: Any) -> Any:
    ds = attention_parts(a)[4]
    return _summed(ds.swapaxes(2, 3) @ _split(a.dy, a.lse.shape[1]), a.v)


def _dv_of_first_sequence(a: Any) -> Any:
    p = attention_parts(a)[2][:1]
    return _summed(np.broadcast_to(p, (len(a.q), *p.shape[1:])).swapaxes(2, 3) @ _split(a.dy, a.lse.shape[1]), a.v)


def _lse_without_maximum(a: Any) -> Any:
    q, k, _ = _by_head(a.q, a.k, a.v, a.lse.shape[1])
    visible = _visible(a.q.shape[1], a.k.shape[1], a.causal, a.window, a.starts)
    scores = q @ k.swapaxes(2, 3) / sqrt(q.shape[3])
    return np.log(_weights(scores, np.where(visible, scores.real, -np.inf).max(axis=-1), visible).sum(axis=-1))


def _without_newest(a: Any) -> Any:
    y = np.empty_like(a.y)
    from tapeless.ops.cached_attention.reference import forward as right

    right(y, a.q, a.keys, a.values, a.position - 1, a.window)
    return y


def _one_further(cache: str, new: str) -> Any:
    def kept(a: Any) -> Any:
        batch, heads, _, width = a.keys.shape
        moved, time = getattr(a, cache).copy(), a.k.shape[1]
        start = int(a.position[0]) + 1
        moved[:, :, start : start + time] = getattr(a, new).reshape(batch, time, heads, width).swapaxes(1, 2)
        return moved

    return kept


BUGS = (
    Bug(
        "attention-unscaled",
        "attention",
        "1/√D is missing, in the forward and in the backward alike.",
        "The softmax saturates as heads get wider; training is slow or stalls, and no gradient check complains.",
        helper("attention", "sqrt", lambda width: 1.0),
    ),
    Bug(
        "attention-scale-of-channels",
        "attention",
        "The scores are divided by √C, the model's width, instead of √D, a head's.",
        "Attention stays too flat, the more so the more heads there are.",
        helper("attention", "sqrt", lambda width: sqrt(2 * width)),
    ),
    Bug(
        "attention-scale-twice-in-backward",
        "attention",
        "dq and dk are divided by √D twice.",
        "Query and key weights hardly learn, the rest does.",
        scaled_scores(2),
    ),
    Bug(
        "softmax-diagonal-only",
        "attention",
        "The softmax is differentiated as if each weight depended on its own score alone: ds = p (1 − p) dp.",
        "The loss still falls, to a worse place.",
        softmax_slope(lambda p, dp: p * (1 - p) * dp),
    ),
    Bug(
        "softmax-sum-over-queries",
        "attention",
        "The sum in ds runs over the queries of a key instead of the keys of a query.",
        "Gradients of the right size and the wrong direction.",
        softmax_slope(lambda p, dp: p * (dp - (p * dp).sum(axis=2, keepdims=True))),
    ),
    Bug(
        "causal-mask-ignored-in-backward",
        "attention",
        "The backward rebuilds the weights without the mask, so the future gets gradients.",
        "Later tokens are trained by earlier losses; the loss falls more slowly than it should.",
        backward("attention", **_masked(_no_mask)),
    ),
    Bug(
        "causal-mask-wrong-corner-in-backward",
        "attention",
        "Where keys outnumber queries, the backward aligns the mask to the first key, the forward to the last.",
        "Nothing in training on equal lengths; wrong gradients or NaN in cross-attention or with a prefix.",
        backward("attention", **_masked(_top_left)),
        public="ffpa-attn's Triton backward, pull request 300: a right forward, a backward with square alignment.",
    ),
    Bug(
        "causal-mask-ignored",
        "attention",
        "No mask at all: every position sees the answer.",
        "A loss far too good to be true, and text that is noise.",
        helper("attention", "_visible", _no_mask),
    ),
    Bug(
        "causal-mask-wrong-corner",
        "attention",
        "With more keys than queries the mask is aligned to the first key instead of the last.",
        "A model that is right in training and forgets its prompt when it decodes.",
        helper("attention", "_visible", _top_left),
        public="FlashAttention aligned it so until 2.1; SageAttention, pull request 372, for decoding shapes.",
    ),
    Bug(
        "causal-mask-one-ahead",
        "attention",
        "Each position sees one token of the future: the one it has to predict.",
        "The loss goes to almost zero within minutes.",
        helper("attention", "_visible", _one_ahead),
    ),
    Bug(
        "dq-dk-swapped",
        "attention",
        "dq is stored as dk and dk as dq.",
        "Where lengths are equal nothing crashes; queries follow the keys' gradient.",
        backward("attention", dq=_swapped("dq"), dk=_swapped("dk")),
    ),
    Bug(
        "dk-not-transposed",
        "attention",
        "dk is ds·q instead of dsᵀ·q.",
        "With equal lengths it runs; keys are trained by what they should have been asked, not by what was.",
        backward("attention", dk=_untransposed_dk),
    ),
    Bug(
        "heads-interleaved-in-backward",
        "attention",
        "dq is put together with heads and channels exchanged.",
        "Each head is trained by another's gradient.",
        backward("attention", dq=_interleaved),
    ),
    Bug(
        "dv-from-score-gradients",
        "attention",
        "dv = dsᵀ·dy instead of pᵀ·dy: the wrong of two arrays of the same shape.",
        "Values hardly learn.",
        backward("attention", dv=_dv_of_slopes),
    ),
    Bug(
        "attention-weights-of-first-sequence",
        "attention",
        "dv of every sequence is made with the first sequence's weights.",
        "Right for a batch of one, which is what it was tested with.",
        backward("attention", dv=_dv_of_first_sequence),
    ),
    Bug(
        "lse-without-maximum",
        "attention",
        "The log-sum-exp that is saved lacks the maximum that was subtracted for safety.",
        "None here, where the backward takes the maximum anew; one that trusts lse has weights that do not sum to one.",
        forward("attention", lse=_lse_without_maximum),
    ),
    Bug(
        "attention-identity-gradient",
        "attention",
        "The gradient of attention is taken to be dy itself plus a small update.",
        "Feed-forward layers learn, attention does not.",
        backward("attention", dv=lambda a: np.resize(1.01 * a.dy, a.v.shape), dq=lambda a: 0.01 * a.dy),
        public="A founding document of this project (003) has it so.",
    ),
    Bug(
        "decoding-misses-newest",
        "cached_attention",
        "When decoding, a position does not see itself.",
        "Sampled text is worse than the validation loss promises.",
        forward("cached_attention", y=_without_newest),
    ),
    Bug(
        "cache-one-further",
        "remember",
        "New keys and values go one place too far into the cache.",
        "Decoding with a cache gives other text than decoding without.",
        forward("remember", keys=_one_further("keys", "k"), values=_one_further("values", "v")),
    ),
)
