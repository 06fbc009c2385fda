"""Bugs of a fast backend: what the reference has right and its kernels lose.

Where a wrong kernel is easier to read in NumPy than in machine code it is written so: what matters is the numbers that
come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, store
from tests.bugs.planting import Bug, Plant, wrapped


def _binder(op: str, direction: str, wrong: Callable[..., None]) -> Plant:
    """After the right native calls, `wrong` spoils what they computed; the arguments are the binder's."""

    def make(right: Any) -> Any:
        def bind(*args: Any, **options: Any) -> list[Callable[[], None]]:
            natives: list[Callable[[], None]] = right(*args, **options)
            options.pop("scratch", None)
            return [*natives, lambda: wrong(*args, **options)]

        return bind

    return _patched(op, direction, make)


def _patched(op: str, name: str, make: Callable[[Any], Any]) -> Plant:
    """Loaded only when planted: Numba takes its time."""

    @contextmanager
    def plant() -> Iterator[None]:
        with wrapped(import_module(f"tapeless.ops.{op}.cpu"), name, make)():
            yield

    return plant


def _instead(op: str, direction: str, wrong: Callable[..., None]) -> Plant:
    def make(right: Any) -> Any:
        return lambda *args, scratch=(), **options: [lambda: wrong(*args, **options)]

    return _patched(op, direction, make)


def _bfloat16(x: Array) -> Array:
    """Float32 cut to the eight bits of a bfloat16's fraction."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _low_precision(dx: Any, dweight: Array, dbias: Any, dy: Array, x: Array, weight: Array, add: Any = NONE) -> None:
    total = np.zeros_like(dweight)
    for row, gradient in zip(x, dy, strict=True):
        total = _bfloat16(total + np.outer(row, gradient))
    store(dweight, total, "dweight" in add)
    if dbias is not None:
        store(dbias, dy.sum(axis=0), "dbias" in add)
    if dx is not None:
        store(dx, dy @ weight.T, "dx" in add)


def _without_rest(dx: Any, dweight: Array, dbias: Any, dy: Array, x: Array, weight: Array, add: Any = NONE) -> None:
    if dbias is not None:
        dbias -= dy[len(dy) // 4 * 4 :].sum(axis=0)


def _one_pass(y: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array, eps: float) -> None:
    variance = (x * x).mean(axis=1) - mean * mean
    rstd[...] = 1 / np.sqrt(np.maximum(variance, 0) + np.float32(eps))
    y[...] = (x - mean[:, None]) * rstd[:, None] * weight + bias


def _strip_written(
    dq: Array,
    dk: Array,
    dv: Array,
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    starts: Any,
    causal: bool,
    window: int,
) -> None:
    """What the first strip of 64 queries added to dv replaces what the later strips had put there."""
    if q.shape[1] > 64 and causal and q.shape[2] == k.shape[2]:
        heads = lse.shape[1]
        width = q.shape[2] // heads
        for h in range(heads):
            own = slice(h * width, (h + 1) * width)
            scores = q[:, :64, own] @ k[:, :64, own].swapaxes(1, 2) / np.sqrt(np.float32(width))
            p = np.tril(np.exp(scores - lse[:, h, :64, None]))
            dv[:, :64, own] = p.swapaxes(1, 2) @ dy[:, :64, own]


def _overwrites_dy(dx: Array, dy: Array, x: Array) -> None:
    dy[...] = dx


def _race(dweight: Array, dy: Array, tokens: Array, add: Any = NONE) -> None:
    """Two threads add to the same row and one of them loses."""
    seen: set[int] = set()
    for row, token in zip(dy, tokens, strict=True):
        if int(token) in seen:
            dweight[token] -= row
            break
        seen.add(int(token))


def _shifted_spans(right: Any) -> Any:
    return lambda pieces, decayed: right(pieces, tuple((start + 1, stop + 1) for start, stop in decayed))


def _whole_chunks(right: Any) -> Any:
    return lambda rows, chunk: [part for part in right(rows, chunk) if part[0].stop - part[0].start == chunk]


def _always_written(right: Any) -> Any:
    return lambda *args, add=NONE, **options: right(*args, add=add - {"dweight"}, **options)


def _rough_tanh(y: Array, x: Array) -> None:
    y[...] = x * (27 + x * x) / (27 + 9 * x * x)


def _rough_sum(norm: Array, norms: Array, gradients: Array, sections: Any, scratch: Any) -> None:
    norm[0] = np.sqrt(float((gradients * gradients).astype(np.float16).sum(dtype=np.float16)))


BUGS = (
    Bug(
        "cpu-bfloat16-reduction",
        "linear on cpu",
        "dweight is summed in bfloat16.",
        "Rows beyond the first few hundred add nothing; large batches learn no better than small ones.",
        _instead("linear", "backward", _low_precision),
    ),
    Bug(
        "cpu-rest-of-rows",
        "linear on cpu",
        "dbias is summed four rows at a time, and the rest is forgotten.",
        "Nothing where four divides the rows.",
        _binder("linear", "backward", _without_rest),
    ),
    Bug(
        "cpu-always-writes",
        "linear on cpu",
        "dweight is always written: the product's beta stays 0.",
        "With gradient accumulation only the last batch counts.",
        _patched("linear", "backward", _always_written),
    ),
    Bug(
        "cpu-one-pass-variance",
        "layernorm on cpu",
        "The variance is mean(x²) − mean(x)² in float32.",
        "Noise, or NaN, where the mean is large beside the spread.",
        _binder("layernorm", "forward", _one_pass),
    ),
    Bug(
        "cpu-strip-overwrites",
        "attention on cpu",
        "The strips of queries write dv instead of adding to it.",
        "Right up to 64 positions.",
        _binder("attention", "backward", _strip_written),
    ),
    Bug(
        "cpu-chunk-left-over",
        "classifier on cpu",
        "Rows that fill no whole chunk are dropped.",
        "Nothing where the chunk divides the rows.",
        _patched("classifier", "_chunks", _whole_chunks),
    ),
    Bug(
        "cpu-gradient-overwritten",
        "gelu on cpu",
        "The backward leaves its result in dy as well: it was computed in place.",
        "Right, until somebody else reads dy.",
        _binder("gelu", "backward", _overwrites_dy),
    ),
    Bug(
        "cpu-lost-addition",
        "embedding on cpu",
        "Two threads add to the same row at once and one addition is lost.",
        "Other gradients in every run.",
        _binder("embedding", "backward", _race),
    ),
    Bug(
        "cpu-rough-tanh",
        "tanh on cpu",
        "A rational approximation of tanh that is good to three digits.",
        "Gradients that do not belong to the forward; the loss curve looks alike.",
        _binder("tanh", "forward", _rough_tanh),
    ),
    Bug(
        "cpu-half-precision-norm",
        "global_norm on cpu",
        "Squares are summed in float16.",
        "The norm overflows or stops growing: clipping does what it likes.",
        _binder("global_norm", "forward", _rough_sum),
    ),
    Bug(
        "cpu-decay-one-off",
        "adamw on cpu",
        "Spans that decay are shifted by one element.",
        "A bias decays, a weight does not.",
        _patched("adamw", "inside", _shifted_spans),
    ),
)
