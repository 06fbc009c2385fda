"""Bugs that need threads, or a second run: right in a small call on one thread, where most tests look.

These are kernels as people write them, compiled as ours are, and they really race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import sqrt
from typing import Any

import numpy as np

from tapeless.ops.contract import NONE
from tests.bugs.planting import Bug, Plant, wrapped


def _instead(op: str, direction: str, binder: Callable[..., Any]) -> Plant:
    """Another binder. Numba is loaded only when the bug is planted."""

    @contextmanager
    def plant() -> Iterator[None]:
        with wrapped(import_module(f"tapeless.ops.{op}.cpu"), direction, lambda right: binder)():
            yield

    return plant


def _kernel(function: Callable[..., None]) -> Any:
    """Compiled. Numba is loaded only now."""
    from tapeless.kernels.cpu import Kernel

    return Kernel(function)


prange = range


def _lost_additions(dweight: Any, dy: Any, tokens: Any, add: Any = NONE) -> Any:
    return [_kernel(lost_additions).bind(dy.size, dweight, dy, tokens, "dweight" in add)]


def lost_additions(dweight, dy, tokens, add):
    """Rows are shared out, and two of them may be of the same word."""
    if not add:
        dweight[:, :] = np.float32(0)
    for r in prange(tokens.size):
        for c in range(dy.shape[1]):
            dweight[tokens[r], c] += dy[r, c]


def _shared_sums(
    dx: Any, dweight: Any, dbias: Any, dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, scratch: Any, add: Any = NONE
) -> Any:
    adds = ("dx" in add, "dweight" in add, "dbias" in add)
    dx, dweight, dbias = (  # what is not asked for is computed all the same
        np.empty_like(like) if given is None else given for given, like in ((dx, x), (dweight, weight), (dbias, weight))
    )
    return [_kernel(shared_sums).bind(x.size, dx, dweight, dbias, dy, x, weight, mean, rstd, *adds)]


def shared_sums(dx, dweight, dbias, dy, x, weight, mean, rstd, add_dx, add_dweight, add_dbias):
    """Every thread adds its rows to the one dweight and dbias."""
    rows, width = x.shape
    if not add_dweight:
        dweight[:] = np.float32(0)
    if not add_dbias:
        dbias[:] = np.float32(0)
    for r in prange(rows):
        g_mean, gx_mean = 0.0, 0.0
        for c in range(width):
            g_mean += dy[r, c] * weight[c] / width
            gx_mean += dy[r, c] * weight[c] * (x[r, c] - mean[r]) * rstd[r] / width
        for c in range(width):
            xhat = (x[r, c] - mean[r]) * rstd[r]
            slope = rstd[r] * (dy[r, c] * weight[c] - g_mean - xhat * gx_mean)
            dx[r, c] = dx[r, c] + slope if add_dx else slope
            dweight[c] += dy[r, c] * xhat
            dbias[c] += dy[r, c]


def _shared_scratch(loss: Any, dx: Any, x: Any, table: Any, targets: Any, count: Any, scratch: Any) -> Any:
    row = np.empty(x.shape[1], np.float32)
    return [_kernel(shared_scratch).bind(x.size, loss, dx, *scratch, row, x, table, targets, count)]


def shared_scratch(loss, dx, row_loss, row, x, table, targets, count):
    """One row of differences for all threads."""
    rows, width = x.shape
    for r in prange(rows):
        row_loss[r] = 0.0
        for c in range(width):
            row[c] = x[r, c] - table[max(targets[r], 0), c] if targets[r] >= 0 else np.float32(0)
        for c in range(width):
            row_loss[r] += row[c] * row[c]
            dx[r, c] = np.float32(2.0 / (count[0] * width)) * row[c]
    loss[0] = np.float32(row_loss.sum() / (count[0] * width))


def _not_reset(norm: Any, norms: Any, gradients: Any, sections: Any, scratch: Any) -> Any:
    edges, partial = np.array([*sections, gradients.size]), np.zeros(-(-gradients.size // 65536))
    return [_kernel(not_reset).bind(gradients.size, norm, norms, gradients, edges, partial)]


def not_reset(norm, norms, gradients, edges, partial):
    """The sums of the blocks start from what the last run left."""
    for section in range(norms.size):
        total = 0.0
        for i in range(edges[section], edges[section + 1]):
            total += np.float64(gradients[i]) ** 2
        norms[section] = sqrt(total)
    for block in prange(partial.size):
        for i in range(block * 65536, min(gradients.size, block * 65536 + 65536)):
            partial[block] += np.float64(gradients[i]) * np.float64(gradients[i])
    norm[0] = sqrt(partial.sum())


def _too_early(loss: Any, x: Any, table: Any, targets: Any, count: Any, scratch: Any) -> Any:
    return [_kernel(too_early).bind(x.size, loss, *scratch, x, table, targets, count)]


def too_early(loss, row_loss, x, table, targets, count):
    """Whoever has the last row adds up, whether the others are done or not."""
    rows, width = x.shape
    for r in prange(rows):
        row_loss[r] = 0.0
        if targets[r] >= 0:
            for c in range(width):
                row_loss[r] += (x[r, c] - table[targets[r], c]) * (x[r, c] - table[targets[r], c])
        if r == rows - 1:
            total = 0.0
            for each in range(rows):
                total += row_loss[each]
                row_loss[each] = 0.0
            loss[0] = np.float32(total / (count[0] * width))


def _overlapping(weights: Any, master: Any, *rest: Any, scratch: Any) -> Any:
    *others, sections = rest
    edges = np.array([*sections, weights.size])
    return [_kernel(overlapping).bind(weights.size, weights, *others, edges)]


def overlapping(weights, step, moved, norms, gradients, scale, finite, lr, edges):
    """Each block has the first element of the next as well."""
    rate = np.float32(lr[0] * scale[0])
    for section in range(norms.size):
        change, size = 0.0, 0.0
        for i in range(edges[section], edges[section + 1]):
            change += (rate * gradients[i]) ** 2 if finite[0] else 0.0
            size += np.float64(weights[i]) ** 2
        moved[section], norms[section] = sqrt(change), sqrt(size)
    step[0] += finite[0]
    for block in prange(-(-weights.size // 16384) if finite[0] else 0):
        for i in range(block * 16384, min(weights.size, block * 16384 + 16385)):
            weights[i] -= rate * gradients[i]


def _rest_left_out(y: Any, x: Any, branch: Any) -> Any:
    from tapeless.kernels import cpu as cpu_kernels

    flat = (array.reshape(-1, copy=False) for array in (y, x, branch))
    return [_kernel(rest_left_out).bind(x.size, *flat, cpu_kernels.threads() if x.size >= 65536 else 1)]


def rest_left_out(y, x, branch, workers):
    """The elements are shared out evenly; what is left over is nobody's."""
    share = x.size // workers
    for worker in prange(workers):
        for i in range(worker * share, worker * share + share):
            y[i] = x[i] + branch[i]


BUGS = (
    Bug(
        "race-lost-additions",
        "embedding on cpu",
        "The rows of a batch are shared out among threads, and two of them add to the same word at once.",
        "Gradients of frequent words are a few per cent too small, in every run others.",
        _instead("embedding", "backward", _lost_additions),
    ),
    Bug(
        "race-shared-sums",
        "layernorm on cpu",
        "All threads add to one dweight and dbias instead of sums of their own.",
        "Gradients of the norms are too small at sizes that thread; right on one thread.",
        _instead("layernorm", "backward", _shared_sums),
    ),
    Bug(
        "race-shared-scratch",
        "squared_error on cpu",
        "All threads keep their differences in one row of scratch.",
        "Rows get the gradients of other rows, now and then.",
        _instead("squared_error", "backward", _shared_scratch),
    ),
    Bug(
        "race-sum-before-the-others-are-done",
        "squared_error on cpu",
        "The thread that has the last row adds up the losses of all rows without waiting for the others.",
        "A loss that is too small whenever another thread is slower.",
        _instead("squared_error", "forward", _too_early),
    ),
    Bug(
        "sums-not-reset",
        "global_norm on cpu",
        "The partial sums of the threads are set to zero when the call is bound, not when it runs.",
        "The first update is right; then the norm only grows and everything is clipped away.",
        _instead("global_norm", "forward", _not_reset),
    ),
    Bug(
        "blocks-overlap",
        "sgd on cpu",
        "Blocks that are shared out among threads have one element in common.",
        "One weight in 16,384 is updated twice, or, when threads meet there, once.",
        _instead("sgd", "forward", _overlapping),
    ),
    Bug(
        "rest-left-out-on-threads",
        "residual on cpu",
        "Elements are shared out evenly among threads, and what does not divide is left out.",
        "Right on one thread, and wherever the size divides by the threads.",
        _instead("residual", "forward", _rest_left_out),
    ),
)
