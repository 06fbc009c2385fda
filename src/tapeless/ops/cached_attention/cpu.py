"""Attention over the cache on the CPU: a head is one thread's, and its past is read once, from end to end.

One query has its own kernel: to it a product would give half of the memory's speed.
"""

from __future__ import annotations

from math import sqrt

from numba import float32, intp, prange, uintp

from tapeless.kernels.cpu import (
    NOT_TRANSPOSED,
    TRANSPOSED,
    Kernel,
    call_gemm,
    calling_gemm,
    inlined,
    plus,
)
from tapeless.kernels.native import Native
from tapeless.ops.attention.cpu import _orders, _softmax, gemm_for
from tapeless.ops.attention.scratch import THREADED_WORK

N, T = NOT_TRANSPOSED, TRANSPOSED


def forward(y, q, keys, values, position, window, scratch) -> list[Native]:
    strips, *sums = scratch
    work = q.size * keys.shape[2]
    arguments = (y, q, keys, values, position, strips, *(sums or (None,)), window)
    if q.shape[1] == 1:
        return [ONE_QUERY.bind(work, *arguments, threaded_from=THREADED_WORK)]
    native = QUERIES.bind(work, *arguments, gemm_for(q, *keys.shape[2:]), threaded_from=THREADED_WORK)
    return calling_gemm(native, len(strips))


@inlined
def _first(own, window):
    """The first position that the one at `own` sees."""
    return max(0, own - window + 1) if window > 0 else 0


def one_query(y, q, keys, values, position, scratch, sums, window):
    batch, groups, _, width = keys.shape
    heads = q.shape[2] // width
    workers, scale = scratch.shape[0], float32(1.0 / sqrt(width))
    first = _first(position[0], window)
    for worker in prange(workers):
        row = scratch[worker, 0, : position[0] + 1 - first]
        for head in range(worker, batch * heads, workers):
            b, h = head // heads, head % heads
            low, shared = h * width, h // (heads // groups)
            _match(row, q[b, 0, low : low + width], keys[b, shared, first:], scale)  # (1)
            _softmax(row, 0, row.size)
            if sums is None:
                _mix(y[b, 0, low : low + width], row, values[b, shared, first:])  # (2)
            else:
                _mix(sums[worker, 0], row, values[b, shared, first:])  # (2)
                y[b, 0, low : low + width] = sums[worker, 0]


@inlined
def _match(scores, q, keys, scale):
    for j in range(scores.size):
        key, total = keys[j], float32(0)
        for c in range(q.size):
            total = plus(total, q[c] * key[c])
        scores[j] = total * scale


@inlined
def _mix(y, weights, values):
    """Four positions at a time, so that the sum is loaded and stored once for four."""
    y[:] = float32(0)
    whole = weights.size // 4 * 4
    for j in range(0, whole, 4):
        first, second, third, fourth = values[j], values[j + 1], values[j + 2], values[j + 3]
        one, two, three, four = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for c in range(y.size):
            y[c] += (one * first[c] + two * second[c]) + (three * third[c] + four * fourth[c])
    for j in range(whole, weights.size):
        value, weight = values[j], weights[j]
        for c in range(y.size):
            y[c] += weight * value[c]


def queries(y, q, keys, values, position, scratch, sums, window, product):
    """Rows of q and y lie any distance apart. No product reaches beyond the last query's own position."""
    batch, groups, held, width = keys.shape
    workers, time, ld = scratch.shape
    heads, before, scale = q.shape[2] // width, position[0], float32(1.0 / sqrt(width))
    low, (right, both) = _first(before, window), _orders(q)
    for worker in prange(workers):
        strip = scratch[worker]
        strip_at = uintp(strip.ctypes.data)
        for head in range(worker, batch * heads, workers):
            b, h = head // heads, head % heads
            q_at = uintp(q.ctypes.data) + uintp(b * q.strides[0] + h * width * q.itemsize)
            y_at = uintp(y.ctypes.data) + uintp(b * y.strides[0] + h * width * q.itemsize)
            place = ((b * groups + h // (heads // groups)) * held + low) * width * q.itemsize
            keys_at = uintp(keys.ctypes.data) + uintp(place)
            values_at = uintp(values.ctypes.data) + uintp(place)
            ldq, ldy = intp(q.strides[1] // q.itemsize), intp(y.strides[1] // q.itemsize)
            m, n, w, zero, one = intp(time), intp(before + time - low), intp(width), float32(0), float32(1)
            call_gemm(
                product, intp(both), intp(N), intp(T), m, n, w, scale, q_at, ldq, keys_at, w, zero, strip_at, intp(ld)
            )  # (1)
            for t in range(time):
                _softmax(strip[t, : before + time - low], _first(before + t, window) - low, before + t + 1 - low)
            if sums is not None:
                y_at, ldy = uintp(sums[worker].ctypes.data), w
            call_gemm(
                product, intp(right), intp(N), intp(N), m, w, n, one, strip_at, intp(ld), values_at, w, zero, y_at, ldy
            )  # (2)
            if sums is not None:
                y[b, :, h * width : (h + 1) * width] = sums[worker]


ONE_QUERY, QUERIES = Kernel(one_query), Kernel(queries)
