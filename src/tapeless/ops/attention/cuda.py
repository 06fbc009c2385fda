"""Attention on the GPU: a program has a block of queries, or of keys, in its registers and goes along the other side.

q, k and v are read where they lie, columns of one product or of two, and their gradients are written the same way.
Scores are in base 2: exp2 is what the hardware has. The backward rebuilds p in two kernels: that of dq also makes
dy · y of each query, which that of dk and dv then reads. No two programs add to one place. In bfloat16 p comes from the
saved lse; in float32, where a large lse has lost digits that would show, from largest score and sum, made again.
"""

from __future__ import annotations

from math import sqrt

import torch
import triton
import triton.language as tl

from tapeless.errors import NotYetError, TapelessError
from tapeless.kernels.cuda.launch import blocks, launch
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# (queries, keys, warps, stages), measured on an H200 at a depth of 64. float32 takes twice the room.
FORWARD, QUERIES, KEYS, FLOAT32 = (64, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3), (32, 32, 4, 1)
REGISTERS = 128  # of a thread of the forward, so that four programs share a multiprocessor


def forward(y, lse, q, k, v, starts, causal, window) -> list[Native]:
    _refuse(q, k, starts, window)
    depth = q.shape[2] // lse.shape[1]
    strides = {"k_strides": (k.stride(0), depth, k.stride(1)), "v_strides": (v.stride(0), depth, v.stride(1))}
    return mixed(y, lse, q, k, v, depth, k.shape[1], causal, **strides)


def mixed(y, lse, q, k, v, depth, keys, causal, k_strides, v_strides, position=None) -> list[Native]:
    """The strides of keys and values: from sequence to sequence, head to head, place to place. Where there is a
    `position`, the first query stands there and sees the keys up to itself, however many there are."""
    batch, queries, channels = q.shape
    heads = channels // depth
    high, wide, options = _tiles(q, depth, FORWARD)
    if q.dtype == torch.bfloat16 and options["DEPTH"] <= 64:
        options["maxnreg"] = REGISTERS
    run = launch(
        _forward, blocks(queries, high) * batch * heads,
        y, lse, q, k, v, position, *_rows(y), *_rows(q), *k_strides, *v_strides,
        queries, keys, heads, 1 / sqrt(depth), CAUSAL=bool(causal), HIGH=high, WIDE=wide, **options,
    )  # fmt: skip
    return [run]


def backward(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window) -> list[Native]:
    _refuse(q, k, starts, window)
    batch, heads, queries = lse.shape
    keys, depth = k.shape[1], q.shape[2] // heads
    pulls, sizes = scratch(lse, *lse.shape), (queries, keys, heads, 1 / sqrt(depth))
    high, wide, options = _tiles(q, depth, QUERIES)
    runs: list[Native] = []
    shift, sums = lse, None
    if q.dtype == torch.float32:
        shift, sums = (scratch(lse, *lse.shape) for _ in range(2))
        arguments = (shift, sums, q, k, *_rows(q), *_rows(k), *sizes)
        grid, tiles = blocks(queries, high) * batch * heads, {"HIGH": high, "WIDE": wide, **options}
        runs.append(launch(_sums, grid, *arguments, CAUSAL=bool(causal), **tiles))
    of_queries = launch(
        _backward_queries, blocks(queries, high) * batch * heads,
        dq, pulls, dy, q, k, v, y, shift, sums, *(s for x in (dq, dy, q, k, v, y) for s in _rows(x)), *sizes,
        CAUSAL=bool(causal), HIGH=high, WIDE=wide, **options,
    )  # fmt: skip
    high, wide, options = _tiles(q, depth, KEYS)
    of_keys = launch(
        _backward_keys, blocks(keys, wide) * batch * heads,
        dk, dv, dy, q, k, v, shift, sums, pulls, *(s for x in (dk, dv, dy, q, k, v) for s in _rows(x)), *sizes,
        CAUSAL=bool(causal), HIGH=high, WIDE=wide, **options,
    )  # fmt: skip
    return [*runs, of_queries, of_keys]


def _refuse(q, k, starts, window) -> None:
    if q.shape[2] != k.shape[2] or starts is not None or window:
        raise NotYetError(
            "attention on a GPU has neither shared heads nor windows nor documents in a row yet: take backend='cpu'."
        )


def _tiles(q, depth, measured):
    high, wide, warps, stages = FLOAT32 if q.dtype == torch.float32 else measured
    if depth > 128:
        high, wide, stages = 32, 32, 1
    padded = max(16, triton.next_power_of_2(depth))
    return high, wide, {"D": depth, "DEPTH": padded, "num_warps": warps, "num_stages": stages}


def _rows(x):
    """From sequence to sequence, and from place to place; heads stand side by side in the channels."""
    if x.shape[1] * x.stride(1) >= 2**31:  # within a sequence the kernels count in 32 bits, which is faster
        raise TapelessError(f"attention on a GPU cannot reach across {x.shape[1]:,} positions: take a shorter time.")
    return x.stride(0), x.stride(1)


@triton.jit
def _tile(X, rows, stride, limit, MASKED: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr):
    """Rows of one head; 0 beyond the last and beyond its width."""
    d = tl.arange(0, DEPTH)
    at = X + rows[:, None] * stride + d[None, :]
    if MASKED:
        return tl.load(at, mask=(rows < limit)[:, None] & (d < D)[None, :], other=0.0)
    if D < DEPTH:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def _store(X, rows, stride, limit, value, D: tl.constexpr, DEPTH: tl.constexpr):
    d = tl.arange(0, DEPTH)
    tl.store(X + rows[:, None] * stride + d[None, :], value, mask=(rows < limit)[:, None] & (d < D)[None, :])


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _seen(rows, cols, S, shift, CAUSAL: tl.constexpr):
    seen = (cols < S)[None, :]
    if CAUSAL:
        seen = seen & (cols[None, :] <= rows[:, None] + shift)
    return seen


@triton.jit
def _mix(
    top, total, mixed, q, K, V, k_row, v_row, rows, first, last, S, shift, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Keys from `first` to `last`, with a running maximum and sum."""
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = _tile(K, cols, k_row, S, MASKED, D, DEPTH)
        v = _tile(V, cols, v_row, S, MASKED, D, DEPTH)
        s = _dot(q, tl.trans(k))  # (1)
        if MASKED:
            s = tl.where(_seen(rows, cols, S, shift, CAUSAL), s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        mixed = mixed * shrink[:, None] + _dot(p.to(v.dtype), v)  # (3)
        top = new
    return top, total, mixed


@triton.jit
def _forward(
    Y, LSE, Q, K, V, POSITION,
    y_batch, y_row, q_batch, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, T, S, H, scale,
    CAUSAL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(T, HIGH)
    block = down - 1 - tl.program_id(0) % down  # the longest rows first
    head = tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    if POSITION is not None:
        shift = tl.load(POSITION).to(tl.int32)
        S = shift + T
    K, V = K + b * k_batch + h * k_head, V + b * v_batch + h * v_head
    q = _tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    top = tl.full((HIGH,), -float("inf"), tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    mixed = tl.zeros((HIGH, DEPTH), tl.float32)
    free, last = S // WIDE * WIDE, S
    if CAUSAL:
        free, last = (block * HIGH + shift + 1) // WIDE * WIDE, tl.minimum(block * HIGH + HIGH + shift, S)
    top, total, mixed = _mix(
        top, total, mixed, q, K, V, k_row, v_row, rows, 0, free, S, shift, scale * LOG2E,
        False, CAUSAL, WIDE, D, DEPTH,
    )  # fmt: skip
    top, total, mixed = _mix(
        top, total, mixed, q, K, V, k_row, v_row, rows, free, last, S, shift, scale * LOG2E,
        True, CAUSAL, WIDE, D, DEPTH,
    )  # fmt: skip
    _store(Y + b * y_batch + h * D, rows, y_row, T, mixed / total[:, None], D, DEPTH)
    if LSE is not None:
        tl.store(LSE + head.to(tl.int64) * T + rows, (top + tl.log2(total)) * LN2, mask=rows < T)  # (2)


@triton.jit
def _sums(
    TOPS, SUMS, Q, K, q_batch, q_row, k_batch, k_row, T, S, H, scale,
    CAUSAL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Of each query its largest score, in base 2, and Σ_j exp2(s_j − largest)."""
    down = tl.cdiv(T, HIGH)
    block, head = tl.program_id(0) % down, tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    q = _tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    K += b * k_batch + h * D
    top = tl.full((HIGH,), -float("inf"), tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    last = S
    if CAUSAL:
        last = tl.minimum(block * HIGH + HIGH + shift, S)
    for at in range(0, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        s = _dot(q, tl.trans(_tile(K, cols, k_row, S, True, D, DEPTH))) * (scale * LOG2E)
        s = tl.where(_seen(rows, cols, S, shift, CAUSAL), s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        total = total * tl.exp2(top - new) + tl.sum(tl.exp2(s - new[:, None]), 1)
        top = new
    at = head.to(tl.int64) * T + rows
    tl.store(TOPS + at, top, mask=rows < T)
    tl.store(SUMS + at, total, mask=rows < T)


@triton.jit
def _slopes_of_queries(
    dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, first, last, S, shift, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = _tile(K, cols, k_row, S, MASKED, D, DEPTH)
        v = _tile(V, cols, v_row, S, MASKED, D, DEPTH)
        p = tl.exp2(_dot(q, tl.trans(k)) * scale - shifts[:, None])
        if SUMS is not None:
            p /= tl.load(SUMS + rows, mask=rows < S - shift, other=1.0)[:, None]
        if MASKED:
            p = tl.where(_seen(rows, cols, S, shift, CAUSAL), p, 0.0)
        ds = p * (_dot(dy, tl.trans(v)) - pull[:, None])  # (5)
        dq += _dot(ds.to(k.dtype), k)  # (6)
    return dq


@triton.jit
def _backward_queries(
    DQ, PULLS, DY, Q, K, V, Y, SHIFTS, SUMS,
    dq_batch, dq_row, dy_batch, dy_row, q_batch, q_row, k_batch, k_row, v_batch, v_row, y_batch, y_row,
    T, S, H, scale,
    CAUSAL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(T, HIGH)
    block = down - 1 - tl.program_id(0) % down
    head = tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    K, V = K + b * k_batch + h * D, V + b * v_batch + h * D
    q = _tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    dy = _tile(DY + b * dy_batch + h * D, rows, dy_row, T, True, D, DEPTH).to(q.dtype)
    y = _tile(Y + b * y_batch + h * D, rows, y_row, T, True, D, DEPTH)
    pull = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    at = head.to(tl.int64) * T + rows
    tl.store(PULLS + at, pull, mask=rows < T)
    shifts = tl.load(SHIFTS + at, mask=rows < T, other=0.0)
    if SUMS is not None:
        SUMS += head.to(tl.int64) * T
    else:
        shifts *= LOG2E  # of lse
    dq = tl.zeros((HIGH, DEPTH), tl.float32)
    free, last = S // WIDE * WIDE, S
    if CAUSAL:
        free, last = (block * HIGH + shift + 1) // WIDE * WIDE, tl.minimum(block * HIGH + HIGH + shift, S)
    dq = _slopes_of_queries(
        dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, 0, free, S, shift, scale * LOG2E,
        False, CAUSAL, WIDE, D, DEPTH,
    )  # fmt: skip
    dq = _slopes_of_queries(
        dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, free, last, S, shift, scale * LOG2E,
        True, CAUSAL, WIDE, D, DEPTH,
    )  # fmt: skip
    _store(DQ + b * dq_batch + h * D, rows, dq_row, T, dq * scale, D, DEPTH)


@triton.jit
def _slopes_of_keys(
    dk, dv, k, v, Q, DY, SHIFTS, SUMS, PULLS, q_row, dy_row, cols, first, last, T, shift, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HIGH: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Everything transposed: keys down, queries across. A query beyond the last has q = dy = shift = pull = 0, and
    adds nothing."""
    for at in range(first, last, HIGH):
        rows = at + tl.arange(0, HIGH)
        q = _tile(Q, rows, q_row, T, MASKED, D, DEPTH)
        dy = _tile(DY, rows, dy_row, T, MASKED, D, DEPTH).to(v.dtype)
        if MASKED:
            shifts = tl.load(SHIFTS + rows, mask=rows < T, other=0.0)
            pull = tl.load(PULLS + rows, mask=rows < T, other=0.0)
        else:
            shifts, pull = tl.load(SHIFTS + rows), tl.load(PULLS + rows)
        if SUMS is None:
            shifts *= LOG2E  # of lse
        p = tl.exp2(_dot(k, tl.trans(q)) * scale - shifts[None, :])
        if SUMS is not None:
            p /= tl.load(SUMS + rows, mask=rows < T, other=1.0)[None, :]
        if MASKED and CAUSAL:
            p = tl.where(cols[:, None] <= rows[None, :] + shift, p, 0.0)
        dv += _dot(p.to(dy.dtype), dy)  # (4)
        ds = p * (_dot(v, tl.trans(dy)) - pull[None, :])  # (5)
        dk += _dot(ds.to(q.dtype), q)  # (6)
    return dk, dv


@triton.jit
def _backward_keys(
    DK, DV, DY, Q, K, V, SHIFTS, SUMS, PULLS,
    dk_batch, dk_row, dv_batch, dv_row, dy_batch, dy_row, q_batch, q_row, k_batch, k_row, v_batch, v_row,
    T, S, H, scale,
    CAUSAL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(S, WIDE)
    block, head = tl.program_id(0) % across, tl.program_id(0) // across
    b, h = (head // H).to(tl.int64), head % H
    cols, shift = block * WIDE + tl.arange(0, WIDE), S - T
    SHIFTS += head.to(tl.int64) * T
    PULLS += head.to(tl.int64) * T
    if SUMS is not None:
        SUMS += head.to(tl.int64) * T
    Q, DY = Q + b * q_batch + h * D, DY + b * dy_batch + h * D
    k = _tile(K + b * k_batch + h * D, cols, k_row, S, True, D, DEPTH)
    v = _tile(V + b * v_batch + h * D, cols, v_row, S, True, D, DEPTH)
    dk, dv = tl.zeros((WIDE, DEPTH), tl.float32), tl.zeros((WIDE, DEPTH), tl.float32)
    # Queries that see some of these keys, then those that see all of them, then the last, incomplete block.
    some, free, rest = 0, 0, T // HIGH * HIGH
    if CAUSAL:
        some = tl.maximum(block * WIDE - shift, 0) // HIGH * HIGH
        free = tl.cdiv(tl.maximum(block * WIDE + WIDE - 1 - shift, 0), HIGH) * HIGH
        free = tl.minimum(free, tl.cdiv(T, HIGH) * HIGH)
        rest = tl.maximum(rest, free)
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, SHIFTS, SUMS, PULLS, q_row, dy_row, cols, some, free, T, shift, scale * LOG2E,
        True, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, SHIFTS, SUMS, PULLS, q_row, dy_row, cols, free, rest, T, shift, scale * LOG2E,
        False, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, SHIFTS, SUMS, PULLS, q_row, dy_row, cols, rest, T, T, shift, scale * LOG2E,
        True, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    _store(DK + b * dk_batch + h * D, cols, dk_row, S, dk * scale, D, DEPTH)
    _store(DV + b * dv_batch + h * D, cols, dv_row, S, dv, D, DEPTH)
