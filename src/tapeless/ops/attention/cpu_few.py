"""Attention on the CPU for few queries: a head is less work than the calls of its products would be.

All of a head's scores are one matrix on a thread's stack, with a row for every key. A vector holds one of its rows, and
with it all queries, so that the softmax goes down the columns. Documents and windows are left to the strips.
"""

from __future__ import annotations

from math import sqrt

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
    arguments = (y, lse, q, k, v, _before(q, k, causal), workers)
    return FEW.bind(q.size * k.shape[1], *arguments, threaded_from=threaded_from)


def backward(dq, of_keys, dy, q, k, v, heads, causal, workers, threaded_from) -> Native:
    """`of_keys`: dk and dv, of every head of queries."""
    arguments = (dq, *of_keys, dy, q, k, v, heads, _before(q, k, causal), workers)
    return FEW_BACKWARD.bind(2 * q.size * k.shape[1], *arguments, threaded_from=threaded_from)


def _before(q, k, causal):
    """How many keys the first query sees before its own."""
    return k.shape[1] - q.shape[1] if causal else k.shape[1]


def few_queries(y, lse, q, k, v, before, workers):
    batch, queries, channels = q.shape
    keys, heads = k.shape[1], lse.shape[1]
    width, group, scale = channels // heads, channels // k.shape[2], float32(1.0 / sqrt(channels // heads))
    to_y, to_q, to_k, to_v = _apart(y), _apart(q), _apart(k), _apart(v)
    for worker in prange(workers):
        turned, scores, logs = stack_floats(TURNED), stack_floats(SCORES), stack_floats(QUERIES)
        begin, end, step = tasks_of(batch * heads, worker, workers, 1)
        for head in range(begin, end, step):
            b, h = head // heads, head % heads
            q_at, k_at, v_at = _at(q, b, h * width), _at(k, b, h // group * width), _at(v, b, h // group * width)
            _turn(turned, q_at, to_q, queries, width)
            _product(QUERIES, keys, width, k_at, to_k, intp(1), turned, intp(QUERIES), scores, intp(QUERIES), scale)
            softmax_columns(QUERIES, intp(keys), scores, intp(before), logs)
            for i in range(queries):
                lse[b, h, i] = load_float(logs, intp(i))
            for c in range(0, width, LANES):
                of_v, of_y = v_at + uintp(c * 4), _at(y, b, h * width + c)
                _product(LANES, queries, keys, scores, intp(1), intp(QUERIES), of_v, to_v, of_y, to_y, float32(1))


def few_queries_backward(dq, dk, dv, dy, q, k, v, heads, before, workers):
    """dk and dv of each head of queries, also where keys are shared."""
    batch, queries, channels = q.shape
    keys = k.shape[1]
    width, group, scale = channels // heads, channels // k.shape[2], float32(1.0 / sqrt(channels // heads))
    to_q, to_k, to_v, to_dy = _apart(q), _apart(k), _apart(v), _apart(dy)
    to_dq, to_dk, to_dv = _apart(dq), _apart(dk), _apart(dv)
    for worker in prange(workers):
        turned, scores, slopes = stack_floats(TURNED), stack_floats(SCORES), stack_floats(SCORES)
        begin, end, step = tasks_of(batch * heads, worker, workers, 1)
        for head in range(begin, end, step):
            b, h = head // heads, head % heads
            q_at, k_at, v_at = _at(q, b, h * width), _at(k, b, h // group * width), _at(v, b, h // group * width)
            dy_at = _at(dy, b, h * width)
            _turn(turned, q_at, to_q, queries, width)
            _product(QUERIES, keys, width, k_at, to_k, intp(1), turned, intp(QUERIES), scores, intp(QUERIES), scale)
            _turn(turned, dy_at, to_dy, queries, width)
            one, across = float32(1), intp(QUERIES)
            _product(QUERIES, keys, width, v_at, to_v, intp(1), turned, across, slopes, across, one)
            softmax_columns_backward(QUERIES, intp(keys), scores, slopes, intp(before))
            for c in range(0, width, LANES):
                column, on = h * width + c, uintp(c * 4)
                of_dq, of_dk, of_dv = _at(dq, b, column), _at(dk, b, column), _at(dv, b, column)
                _product(LANES, keys, queries, scores, across, intp(1), dy_at + on, to_dy, of_dv, to_dv, one)
                _product(LANES, keys, queries, slopes, across, intp(1), q_at + on, to_q, of_dk, to_dk, scale)
                _product(LANES, queries, keys, slopes, intp(1), across, k_at + on, to_k, of_dq, to_dq, scale)


@inlined
def _apart(x):
    """Numbers from one position to the next."""
    return intp(x.strides[1] // 4)


@inlined
def _at(x, b, column):
    return uintp(x.ctypes.data) + uintp(b * x.strides[0] + column * 4)


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
