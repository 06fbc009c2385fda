"""Bugs of who sees whom: heads of keys that queries share, windows, and documents that share a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeless.check.planted import attention_parts
from tapeless.ops.attention.reference import _join, _split, _visible
from tapeless.ops.cached_attention.reference import forward as cached_attention
from tapeless.ops.contract import Array
from tests.bugs.attention import _masked
from tests.bugs.planting import Bug, backward, forward, helper


def _first_of_group(gradient: str) -> Any:
    """Of the heads of queries that share a head of keys, only the first sends something back."""

    def made(a: Any) -> Any:
        q, _, p, _, ds, scale = attention_parts(a)
        whole = ds.swapaxes(2, 3) @ q * scale if gradient == "dk" else p.swapaxes(2, 3) @ _split(a.dy, a.lse.shape[1])
        groups = a.k.shape[2] // whole.shape[3]
        return _join(whole[:, :: whole.shape[1] // groups])

    return made


def _interleaved_groups(x: Array, heads: int, width: int) -> Array:
    own = _split(x, x.shape[2] // width)
    return np.tile(own, (1, heads // own.shape[1], 1, 1))


def _no_starts(queries: int, keys: int, causal: bool, window: int, starts: Array | None) -> Array:
    return _visible(queries, keys, causal, window, None)


def _no_window(queries: int, keys: int, causal: bool, window: int, starts: Array | None) -> Array:
    return _visible(queries, keys, causal, 0, starts)


def _wider_window(queries: int, keys: int, causal: bool, window: int, starts: Array | None) -> Array:
    return _visible(queries, keys, causal, window and window + 1, starts)


def _one_before(queries: int, keys: int, causal: bool, window: int, starts: Array | None) -> Array:
    return _visible(queries, keys, causal, window, None if starts is None else starts - 1)


def _window_forgotten(a: Any) -> Any:
    y = np.empty_like(a.y)
    cached_attention(y, a.q, a.keys, a.values, a.position, 0)
    return y


BUGS = (
    Bug(
        "group-gradients-not-summed",
        "attention",
        "Of the heads of queries that share a head of keys and values, only the first sends a gradient back.",
        "Nothing where every head has its own; keys and values learn from a part of those who ask them.",
        backward("attention", dk=_first_of_group("dk"), dv=_first_of_group("dv")),
    ),
    Bug(
        "groups-interleaved",
        "attention",
        "Heads h, h + G, h + 2G … share a head of keys, instead of H/G heads side by side.",
        "A model trained so is fine by itself; published weights write noise.",
        helper("attention", "_shared", _interleaved_groups),
    ),
    Bug(
        "segment-leaks",
        "attention",
        "Where documents share a row, a token sees those before its own: the mask knows no beginnings.",
        "The loss is a little too good, and depends on which documents are packed together.",
        helper("attention", "_visible", _no_starts),
    ),
    Bug(
        "segment-leaks-in-backward",
        "attention",
        "The forward keeps documents apart, the backward does not.",
        "Right with one document a row, which is what it was tested with.",
        backward("attention", **_masked(_no_starts)),
    ),
    Bug(
        "segment-begins-too-early",
        "attention",
        "A document sees the last token of the one before it: ≥ for >.",
        "Nothing that a curve shows.",
        helper("attention", "_visible", _one_before),
    ),
    Bug(
        "window-ignored-in-backward",
        "attention",
        "The forward sees the newest keys only, the backward all of them.",
        "Right up to a window's length, which is what it was tested with.",
        backward("attention", **_masked(_no_window)),
    ),
    Bug(
        "window-one-wider",
        "attention",
        "A query sees a window of keys and itself, one more than the published models do.",
        "Loaded weights give slightly other numbers, from the window's length on.",
        helper("attention", "_visible", _wider_window),
    ),
    Bug(
        "window-forgotten-when-decoding",
        "cached_attention",
        "The window is there in training, but the cache is read from its beginning.",
        "Text gets worse once it is longer than the window.",
        forward("cached_attention", y=_window_forgotten),
    ),
)
