"""Attention on the CPU for few queries: a head is less work than the calls of its products would be.

All of a head's scores are one matrix on a thread's stack, with a row for every key. A vector holds one of its rows, and
with it all queries, so that the softmax goes down the columns. Documents and windows are left to the strips.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba import float32, intp, prange, uintp

from tapeless.kernels.cpu import (
    LANES,
    Kernel,
    gemm_strip,
    inlined,
    is_bfloat16,
    load_float,
    softmax_columns,
    softmax_columns_backward,
    stack_floats,
    strided,
    tasks_of,
    transpose_block,
)
from tapeless.kernels.native import Native

QUERIES = 8  # in a vector
KEYS, WIDE = 64, 128  # at most, and numbers in a head
STEP = max(QUERIES, LANES)  # of which a head's width is a multiple
SCORES, TURNED = KEYS * QUERIES, WIDE * QUERIES


def is_few(q, k, heads, starts, causal, window) -> bool:
    queries, keys, width = q.shape[1], k.shape[1], q.shape[2] // heads
    small = queries <= QUERIES and keys <= KEYS and width <= WIDE and width % STEP == 0
    return small and not is_bfloat16(q) and starts is None and not window and (keys >= queries or not causal)


def forward(y, lse, q, k, v, causal, workers, threaded_from) -> Native:
    (y, to_y), (q_rows, to_q), (k_rows, to_k), (v, to_v) = map(_rows, (y, q, k, v))
    size = q.size * k.shape[1]
    arguments = (y, to_y, lse, q_rows, to_q, k_rows, to_k, v, to_v, k.shape[1], *_heads(q, k, lse.shape[1]))
    return FEW.bind(size, *arguments, _before(q, k, causal), workers, threaded_from=threaded_from)


def backward(dq, of_keys, dy, q, k, v, heads, causal, workers, threaded_from) -> Native:
    """`of_keys`: dk and dv, of every head of queries."""
    rows = [_rows(array) for array in (dq, *of_keys, dy, q, k, v)]
    steps = np.array([step for _, step in rows])
    sizes = np.array((q.shape[0], q.shape[1], k.shape[1], heads, *_heads(q, k, heads)))
    arguments = (*(vector for vector, _ in rows), steps, sizes, _before(q, k, causal), workers)
    return FEW_BACKWARD.bind(2 * q.size * k.shape[1], *arguments, threaded_from=threaded_from)


def _rows(array):
    """An array (B T C) as a vector, and the numbers from one position to the next: the same types, whether its rows are
    columns of a larger buffer or not."""
    return strided(array.reshape(-1, array.shape[-1], copy=False))


def _heads(q, k, heads):
    """How wide a head is, and how many heads of queries share one of keys."""
    return q.shape[2] // heads, q.shape[2] // k.shape[2]


def _before(q, k, causal):
    """How many keys the first query sees before its own."""
    return k.shape[1] - q.shape[1] if causal else k.shape[1]


def few_queries(y, to_y, lse, q, to_q, k, to_k, v, to_v, keys, width, group, before, workers):
    batch, heads, queries = lse.shape
    scale = float32(1.0 / sqrt(width))
    for worker in prange(workers):
        turned, scores, logs = stack_floats(TURNED), stack_floats(SCORES), stack_floats(QUERIES)
        begin, end, step = tasks_of(batch * heads, worker, workers, 1)
        for head in range(begin, end, step):
            b, h = head // heads, head % heads
            q_at, y_at = _at(q, b * queries * to_q + h * width), _at(y, b * queries * to_y + h * width)
            k_at, v_at = _at(k, b * keys * to_k + h // group * width), _at(v, b * keys * to_v + h // group * width)
            _turn(turned, q_at, to_q, queries, width)
            _product(QUERIES, keys, width, k_at, to_k, intp(1), turned, intp(QUERIES), scores, intp(QUERIES), scale)
            softmax_columns(QUERIES, intp(keys), scores, intp(before), logs)
            for i in range(queries):
                lse[b, h, i] = load_float(logs, intp(i))
            for c in range(0, width, LANES):
                on = uintp(c * 4)
                _product(
                    LANES, queries, keys, scores, intp(1), intp(QUERIES), v_at + on, to_v, y_at + on, to_y, float32(1)
                )


def few_queries_backward(dq, dk, dv, dy, q, k, v, steps, sizes, before, workers):
    """dk and dv of each head of queries, also where keys are shared. `steps`: of each array from one
    position to the next; `sizes`: batch, queries, keys and heads, how wide a head is and how many share keys."""
    to_dq, to_dk, to_dv, to_dy = steps[0], steps[1], steps[2], steps[3]
    to_q, to_k, to_v = steps[4], steps[5], steps[6]
    batch, queries, keys = sizes[0], sizes[1], sizes[2]
    heads, width, group = sizes[3], sizes[4], sizes[5]
    scale, one, across = float32(1.0 / sqrt(width)), float32(1), intp(QUERIES)
    for worker in prange(workers):
        turned, scores, slopes = stack_floats(TURNED), stack_floats(SCORES), stack_floats(SCORES)
        begin, end, step = tasks_of(batch * heads, worker, workers, 1)
        for head in range(begin, end, step):
            b, h = head // heads, head % heads
            row, key, column, shared = b * queries, b * keys, h * width, h // group * width
            q_at, dy_at, dq_at = (
                _at(q, row * to_q + column),
                _at(dy, row * to_dy + column),
                _at(dq, row * to_dq + column),
            )
            k_at, v_at = _at(k, key * to_k + shared), _at(v, key * to_v + shared)
            dk_at, dv_at = _at(dk, key * to_dk + column), _at(dv, key * to_dv + column)
            _turn(turned, q_at, to_q, queries, width)
            _product(QUERIES, keys, width, k_at, to_k, intp(1), turned, across, scores, across, scale)
            _turn(turned, dy_at, to_dy, queries, width)
            _product(QUERIES, keys, width, v_at, to_v, intp(1), turned, across, slopes, across, one)
            softmax_columns_backward(QUERIES, intp(keys), scores, slopes, intp(before))
            for c in range(0, width, LANES):
                on = uintp(c * 4)
                _product(LANES, keys, queries, scores, across, intp(1), dy_at + on, to_dy, dv_at + on, to_dv, one)
                _product(LANES, keys, queries, slopes, across, intp(1), q_at + on, to_q, dk_at + on, to_dk, scale)
                _product(LANES, queries, keys, slopes, intp(1), across, k_at + on, to_k, dq_at + on, to_dq, scale)


@inlined
def _at(x, offset):
    return uintp(x.ctypes.data) + uintp(offset * 4)


@inlined
def _turn(to, source, apart, queries, width):
    """A row for every number of a head, with all queries side by side."""
    for c in range(0, width, QUERIES):
        transpose_block(QUERIES, QUERIES, to + uintp(c * QUERIES * 4), source + uintp(c * 4), apart, intp(queries - 1))


@inlined
def _product(lanes, rows, depth, a, a_row, a_column, b, b_row, c, c_row, scale):
    """c = scale · a @ b, one vector wide."""
    i, deep, write = 0, intp(depth), intp(0)
    while i + 8 <= rows:
        of_a, of_c = a + uintp(i * a_row * 4), c + uintp(i * c_row * 4)
        gemm_strip(lanes, 8, deep, of_a, a_row, a_column, b, b_row, of_c, c_row, scale, write)
        i += 8
    while i < rows:
        of_a, of_c = a + uintp(i * a_row * 4), c + uintp(i * c_row * 4)
        gemm_strip(lanes, 1, deep, of_a, a_row, a_column, b, b_row, of_c, c_row, scale, write)
        i += 1


FEW, FEW_BACKWARD = Kernel(few_queries), Kernel(few_queries_backward)
