"""Attention on the GPU: a program has a block of queries, or of keys, in its registers and goes along the other side.

q, k and v are read where they lie, columns of one product or of two, and their gradients are written the same way.
Scores are in base 2: exp2 is what the hardware has. The backward rebuilds p from the saved lse in two kernels: that of
dq also makes dy · y of each query, which that of dk and dv then reads. No two programs add to one place.
"""

from __future__ import annotations

from math import sqrt

import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import Run, blocks, launch, scratch

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


def forward(y, lse, q, k, v, causal) -> list[Run]:
    heads, keys = lse.shape[1], k.shape[1]
    return mixed(y, lse, q, k, v, heads, keys, _rows(k), _rows(v), causal, None)


def mixed(y, lse, q, k, v, heads, keys, k_strides, v_strides, causal, position) -> list[Run]:
    """The strides of keys and values: from sequence to sequence, head to head, place to place."""
    batch, queries, channels = q.shape
    depth = channels // heads
    high, wide, warps, stages = _tiles(q, depth, (64, 64, 4, 3), (32, 32, 4, 1))
    down = blocks(queries, high)
    run = launch(
        _forward, down * batch * heads,
        y, lse, q, k, v, position, *_rows(y), *_rows(q), *k_strides, *v_strides,
        queries, keys, heads, depth, 1 / sqrt(depth),
        CAUSAL=bool(causal), DEPTH=_depth(depth), HIGH=high, WIDE=wide, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return [run]


def backward(dq, dk, dv, dy, q, k, v, y, lse, causal) -> list[Run]:
    batch, heads, queries = lse.shape
    keys, depth = k.shape[1], q.shape[2] // heads
    pulls = scratch(lse, *lse.shape)
    sizes = (queries, keys, heads, depth, 1 / sqrt(depth))
    constants = {"CAUSAL": bool(causal), "DEPTH": _depth(depth)}
    high, wide, warps, stages = _tiles(q, depth, (64, 64, 4, 2), (32, 32, 4, 1))
    queries_first = launch(
        _backward_queries, blocks(queries, high) * batch * heads,
        dq, pulls, dy, q, k, v, y, lse, *(s for x in (dq, dy, q, k, v, y) for s in _rows(x)), *sizes,
        HIGH=high, WIDE=wide, **constants, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    high, wide, warps, stages = _tiles(q, depth, (64, 64, 4, 1), (32, 32, 4, 1))
    then_keys = launch(
        _backward_keys, blocks(keys, wide) * batch * heads,
        dk, dv, dy, q, k, v, lse, pulls, *(s for x in (dk, dv, dy, q, k, v) for s in _rows(x)), *sizes,
        HIGH=high, WIDE=wide, **constants, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return [queries_first, then_keys]


def _tiles(q, depth, narrow, wide):
    """(queries, keys, warps, stages): measured on an H200 at a depth of 64. float32 takes twice the room."""
    high, across, warps, stages = wide if q.dtype == torch.float32 else narrow
    return (high, across, warps, stages) if depth <= 128 else (min(high, 32), 32, warps, 1)


def _depth(depth):
    return max(16, triton.next_power_of_2(depth))


def _rows(x):
    """Heads stand side by side in the channels; 0 is taken for their width."""
    return x.stride(0), 0, x.stride(1)


@triton.jit
def _tile(X, rows, stride, limit, d, D, MASKED: tl.constexpr, DEPTH: tl.constexpr):
    """Rows of one head; 0 beyond the last and beyond its width."""
    at = X + rows.to(tl.int64)[:, None] * stride + d[None, :]
    if MASKED:
        return tl.load(at, mask=(rows < limit)[:, None] & (d < D)[None, :], other=0.0)
    return tl.load(at, mask=(d < D)[None, :], other=0.0)


@triton.jit
def _head(X, batch_stride, head_stride, b, h, D):
    return X + b * batch_stride + h * tl.where(head_stride == 0, D, head_stride)


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
    top, total, mixed, q, K, V, k_stride, v_stride, rows, first, last, S, shift, D, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Keys from `first` to `last`, with a running maximum and sum."""
    d = tl.arange(0, DEPTH)
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = _tile(K, cols, k_stride, S, d, D, MASKED, DEPTH)
        v = _tile(V, cols, v_stride, S, d, D, MASKED, DEPTH)
        s = _dot(q, tl.trans(k)) * scale  # (1)
        if MASKED:
            s = tl.where(_seen(rows, cols, S, shift, CAUSAL), s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        mixed = mixed * shrink[:, None] + _dot(p.to(v.dtype), v)  # (3)
        top = new
    return top, total, mixed


@triton.jit
def _forward(
    Y, LSE, Q, K, V, POSITION,
    y_batch, y_head, y_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    T, S, H, D, scale,
    CAUSAL: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(T, HIGH)
    block = down - 1 - tl.program_id(0) % down  # the longest rows first
    head = tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, d = block * HIGH + tl.arange(0, HIGH), tl.arange(0, DEPTH)
    shift = S - T
    if POSITION is not None:
        shift = tl.load(POSITION).to(tl.int32)
        S = shift + T
    q = _tile(_head(Q, q_batch, q_head, b, h, D), rows, q_row, T, d, D, True, DEPTH)
    K, V = _head(K, k_batch, k_head, b, h, D), _head(V, v_batch, v_head, b, h, D)
    top = tl.full((HIGH,), -float("inf"), tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    mixed = tl.zeros((HIGH, DEPTH), tl.float32)
    free, last = S // WIDE * WIDE, S
    if CAUSAL:
        free, last = (block * HIGH + shift + 1) // WIDE * WIDE, tl.minimum(block * HIGH + HIGH + shift, S)
    top, total, mixed = _mix(
        top, total, mixed, q, K, V, k_row, v_row, rows, 0, free, S, shift, D, scale * LOG2E, False, CAUSAL, DEPTH, WIDE
    )
    top, total, mixed = _mix(
        top,
        total,
        mixed,
        q,
        K,
        V,
        k_row,
        v_row,
        rows,
        free,
        last,
        S,
        shift,
        D,
        scale * LOG2E,
        True,
        CAUSAL,
        DEPTH,
        WIDE,
    )
    inside = (rows < T)[:, None] & (d < D)[None, :]
    at = _head(Y, y_batch, y_head, b, h, D) + rows.to(tl.int64)[:, None] * y_row + d[None, :]
    tl.store(at, mixed / total[:, None], mask=inside)
    if LSE is not None:
        tl.store(LSE + head.to(tl.int64) * T + rows, (top + tl.log2(total)) * LN2, mask=rows < T)  # (2)


@triton.jit
def _slopes_of_queries(
    dq, q, dy, lse, pull, K, V, k_stride, v_stride, rows, first, last, S, shift, D, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, DEPTH)
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = _tile(K, cols, k_stride, S, d, D, MASKED, DEPTH)
        v = _tile(V, cols, v_stride, S, d, D, MASKED, DEPTH)
        p = tl.exp2(_dot(q, tl.trans(k)) * scale - lse[:, None])
        if MASKED:
            p = tl.where(_seen(rows, cols, S, shift, CAUSAL), p, 0.0)
        ds = p * (_dot(dy, tl.trans(v)) - pull[:, None])  # (5)
        dq += _dot(ds.to(k.dtype), k)  # (6)
    return dq


@triton.jit
def _backward_queries(
    DQ, PULLS, DY, Q, K, V, Y, LSE,
    dq_batch, dq_head, dq_row, dy_batch, dy_head, dy_row, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    T, S, H, D, scale,
    CAUSAL: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(T, HIGH)
    block = down - 1 - tl.program_id(0) % down
    head = tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, d = block * HIGH + tl.arange(0, HIGH), tl.arange(0, DEPTH)
    shift = S - T
    q = _tile(_head(Q, q_batch, q_head, b, h, D), rows, q_row, T, d, D, True, DEPTH)
    dy = _tile(_head(DY, dy_batch, dy_head, b, h, D), rows, dy_row, T, d, D, True, DEPTH)
    y = _tile(_head(Y, y_batch, y_head, b, h, D), rows, y_row, T, d, D, True, DEPTH)
    pull = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(PULLS + head.to(tl.int64) * T + rows, pull, mask=rows < T)
    lse = tl.load(LSE + head.to(tl.int64) * T + rows, mask=rows < T, other=0.0) * LOG2E
    K, V = _head(K, k_batch, k_head, b, h, D), _head(V, v_batch, v_head, b, h, D)
    dq = tl.zeros((HIGH, DEPTH), tl.float32)
    free, last = S // WIDE * WIDE, S
    if CAUSAL:
        free, last = (block * HIGH + shift + 1) // WIDE * WIDE, tl.minimum(block * HIGH + HIGH + shift, S)
    dy = dy.to(V.dtype.element_ty)
    dq = _slopes_of_queries(
        dq, q, dy, lse, pull, K, V, k_row, v_row, rows, 0, free, S, shift, D, scale * LOG2E,
        False, CAUSAL, DEPTH, WIDE,
    )  # fmt: skip
    dq = _slopes_of_queries(
        dq, q, dy, lse, pull, K, V, k_row, v_row, rows, free, last, S, shift, D, scale * LOG2E,
        True, CAUSAL, DEPTH, WIDE,
    )  # fmt: skip
    at = _head(DQ, dq_batch, dq_head, b, h, D) + rows.to(tl.int64)[:, None] * dq_row + d[None, :]
    tl.store(at, dq * scale, mask=(rows < T)[:, None] & (d < D)[None, :])


@triton.jit
def _slopes_of_keys(
    dk, dv, k, v, Q, DY, LSE, PULLS, q_stride, dy_stride, cols, first, last, T, shift, D, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Everything transposed: keys down, queries across. A query beyond the last has q = dy = lse = pull = 0, and adds
    nothing."""
    d = tl.arange(0, DEPTH)
    for at in range(first, last, HIGH):
        rows = at + tl.arange(0, HIGH)
        q = _tile(Q, rows, q_stride, T, d, D, MASKED, DEPTH)
        dy = _tile(DY, rows, dy_stride, T, d, D, MASKED, DEPTH).to(v.dtype)
        if MASKED:
            lse = tl.load(LSE + rows, mask=rows < T, other=0.0) * LOG2E
            pull = tl.load(PULLS + rows, mask=rows < T, other=0.0)
        else:
            lse, pull = tl.load(LSE + rows) * LOG2E, tl.load(PULLS + rows)
        p = tl.exp2(_dot(k, tl.trans(q)) * scale - lse[None, :])
        if MASKED and CAUSAL:
            p = tl.where(cols[:, None] <= rows[None, :] + shift, p, 0.0)
        dv += _dot(p.to(dy.dtype), dy)  # (4)
        ds = p * (_dot(v, tl.trans(dy)) - pull[None, :])  # (5)
        dk += _dot(ds.to(q.dtype), q)  # (6)
    return dk, dv


@triton.jit
def _backward_keys(
    DK, DV, DY, Q, K, V, LSE, PULLS,
    dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, dy_batch, dy_head, dy_row,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    T, S, H, D, scale,
    CAUSAL: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(S, WIDE)
    block, head = tl.program_id(0) % across, tl.program_id(0) // across
    b, h = (head // H).to(tl.int64), head % H
    cols, d = block * WIDE + tl.arange(0, WIDE), tl.arange(0, DEPTH)
    shift = S - T
    k = _tile(_head(K, k_batch, k_head, b, h, D), cols, k_row, S, d, D, True, DEPTH)
    v = _tile(_head(V, v_batch, v_head, b, h, D), cols, v_row, S, d, D, True, DEPTH)
    Q, DY = _head(Q, q_batch, q_head, b, h, D), _head(DY, dy_batch, dy_head, b, h, D)
    LSE += head.to(tl.int64) * T
    PULLS += head.to(tl.int64) * T
    dk, dv = tl.zeros((WIDE, DEPTH), tl.float32), tl.zeros((WIDE, DEPTH), tl.float32)
    # Queries that see some of these keys, then those that see all of them, then the last, incomplete block.
    some, free, rest = 0, 0, T // HIGH * HIGH
    if CAUSAL:
        some = tl.maximum(block * WIDE - shift, 0) // HIGH * HIGH
        free = tl.minimum(tl.cdiv(tl.maximum(block * WIDE + WIDE - 1 - shift, 0), HIGH) * HIGH, tl.cdiv(T, HIGH) * HIGH)
        rest = tl.maximum(rest, free)
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, LSE, PULLS, q_row, dy_row, cols, some, free, T, shift, D, scale * LOG2E,
        True, CAUSAL, DEPTH, HIGH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, LSE, PULLS, q_row, dy_row, cols, free, rest, T, shift, D, scale * LOG2E,
        False, CAUSAL, DEPTH, HIGH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, Q, DY, LSE, PULLS, q_row, dy_row, cols, rest, T, T, shift, D, scale * LOG2E,
        True, CAUSAL, DEPTH, HIGH,
    )  # fmt: skip
    inside = (cols < S)[:, None] & (d < D)[None, :]
    at = cols.to(tl.int64)[:, None]
    tl.store(_head(DK, dk_batch, dk_head, b, h, D) + at * dk_row + d[None, :], dk * scale, mask=inside)
    tl.store(_head(DV, dv_batch, dv_head, b, h, D) + at * dv_row + d[None, :], dv, mask=inside)
