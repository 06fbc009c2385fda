"""The backward of attention on the GPU: p is rebuilt in two kernels. That of dq also makes dy · y of each query and,
where something hides keys from it, notes the first that it sees; that of dk and dv then reads these. No two programs
add to one place.

In bfloat16 p comes from the saved lse; in float32, where a large lse has lost digits that would show, from largest
score and sum, made again. Where heads of queries share one of keys, a program goes through those that do, or, where
that would leave the device half empty, through some of them, and what each has found is added up in their order.
"""

from __future__ import annotations

from math import sqrt

import torch
import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers, width
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native
from tapeless.ops.attention.cuda import (
    LOG2E,
    LOWEST,
    by_length,
    dot,
    in_registers,
    in_rows,
    lowest,
    mine,
    seen,
    seen_by,
    spans,
    store,
    tile,
    tiles,
)

# (queries, keys, warps, stages), measured on an H200 at a depth of 64
QUERIES, KEYS = (64, 64, 4, 3), (32, 64, 4, 3)
PROGRAMS = 792  # six for each of an H200's 132 multiprocessors: fewer leave it half empty
PLACES = 1024  # whose documents are looked at at once


def backward(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window) -> list[Native]:
    batch, heads, queries = lse.shape
    keys, depth, share = k.shape[1], q.shape[2] // heads, q.shape[2] // k.shape[2]
    pulls, sizes = scratch(lse, *lse.shape), (queries, keys, heads, 1 / sqrt(depth))
    high, wide, options = tiles(q, depth, QUERIES)
    options |= seen_by(causal, window, starts, share)
    lows = scratch(lse, batch, queries, dtype=torch.int32) if options["LIMITED"] else None
    runs: list[Native] = []
    shift, sums = lse, None
    if q.dtype == torch.float32:
        shift, sums = (scratch(lse, *lse.shape) for _ in range(2))
        arguments = (shift, sums, q, k, starts, *in_rows(q), *in_rows(k), *sizes)
        runs.append(launch(_sums, blocks(queries, high) * batch * heads, *arguments, HIGH=high, WIDE=wide, **options))
    down = blocks(queries, high)
    of_queries = launch(
        _backward_queries, down * batch * heads,
        dq, pulls, lows, dy, q, k, v, y, shift, sums, starts, *(s for x in (dq, dy, q, k, v, y) for s in in_rows(x)),
        by_length(batch * heads, down, causal, window, share), *sizes, HIGH=high, WIDE=wide, **options,
    )  # fmt: skip
    high, wide, options = tiles(q, depth, KEYS)
    if lows is None:  # where documents or a window end what is seen, there is less to wait for: more registers pay
        options |= in_registers(q, depth)
    across = blocks(keys, wide)
    programs = across * batch * heads // share
    parts = next(n for n in range(1, share + 1) if programs * n >= PROGRAMS or n == share)
    found = (dk, dv) if parts == 1 else tuple(scratch(lse, parts * batch, *dk.shape[1:]) for _ in range(2))
    of_keys = launch(
        _backward_keys, programs * parts,
        *found, dy, q, k, v, shift, sums, pulls, lows, *(s for x in (*found, dy, q, k, v) for s in in_rows(x)),
        by_length(programs * parts // across, across, causal, window), batch, *sizes,
        CAUSAL=bool(causal), SHARE=share, PARTS=parts, PLACES=PLACES, HIGH=high, WIDE=wide, **options,
    )  # fmt: skip
    runs += [of_queries, of_keys]
    if parts > 1:
        arguments = (dk, dv, *found, *in_rows(dk), *in_rows(dv), batch, keys, dk.shape[2])
        runs.append(launch(_add_parts, batch * keys, *arguments, PARTS=parts, WIDTH=width(dk.shape[2])))
    return runs


@triton.jit
def _sums(
    TOPS, SUMS, Q, K, STARTS, q_batch, q_row, k_batch, k_row, T, S, H, scale,
    CAUSAL: tl.constexpr, LIMITED: tl.constexpr, WINDOW: tl.constexpr, SHARE: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Of each query its largest score, in base 2, and Σ_j exp2(s_j − largest)."""
    down = tl.cdiv(T, HIGH)
    block, head = tl.program_id(0) % down, tl.program_id(0) // down
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    q = tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    K += b * k_batch + h // SHARE * D
    top = tl.full((HIGH,), LOWEST, tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    low = rows
    if STARTS is not None:
        STARTS += b * T
    if LIMITED:
        low = lowest(STARTS, rows, T, shift, WINDOW)
    first, _, _, last = spans(block, low, S, shift, CAUSAL, LIMITED, HIGH, WIDE)
    scale *= LOG2E
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        s = dot(q, tl.trans(tile(K, cols, k_row, S, True, D, DEPTH)))
        s = tl.where(seen(rows, low, cols, S, shift, CAUSAL, LIMITED), s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1) * scale)
        # s · scale − new is rounded once, as where p is rebuilt: rounded twice it is another number, which shows where
        # scores are large.
        total = total * tl.exp2(top - new) + tl.sum(tl.exp2(s * scale - new[:, None]), 1)
        top = new
    at = head.to(tl.int64) * T + rows
    tl.store(TOPS + at, top, mask=rows < T)
    tl.store(SUMS + at, total, mask=rows < T)


@triton.jit
def _slopes_of_queries(
    dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, low, first, last, S, shift, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, LIMITED: tl.constexpr,
    WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = tile(K, cols, k_row, S, MASKED, D, DEPTH)
        v = tile(V, cols, v_row, S, MASKED, D, DEPTH)
        p = tl.exp2(dot(q, tl.trans(k)) * scale - shifts[:, None])
        if SUMS is not None:
            p /= tl.load(SUMS + rows, mask=rows < S - shift, other=1.0)[:, None]
        if MASKED:
            p = tl.where(seen(rows, low, cols, S, shift, CAUSAL, LIMITED), p, 0.0)
        ds = p * (dot(dy, tl.trans(v)) - pull[:, None])  # (5)
        dq += dot(ds.to(k.dtype), k)  # (6)
    return dq


@triton.jit
def _backward_queries(
    DQ, PULLS, LOWS, DY, Q, K, V, Y, SHIFTS, SUMS, STARTS,
    dq_batch, dq_row, dy_batch, dy_row, q_batch, q_row, k_batch, k_row, v_batch, v_row, y_batch, y_row,
    together, T, S, H, scale,
    CAUSAL: tl.constexpr, LIMITED: tl.constexpr, WINDOW: tl.constexpr, SHARE: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(T, HIGH)
    above, head = mine(down, together)
    block = down - 1 - above
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    K, V = K + b * k_batch + h // SHARE * D, V + b * v_batch + h // SHARE * D
    q = tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    dy = tile(DY + b * dy_batch + h * D, rows, dy_row, T, True, D, DEPTH).to(q.dtype)
    y = tile(Y + b * y_batch + h * D, rows, y_row, T, True, D, DEPTH)
    pull = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    at = head.to(tl.int64) * T + rows
    tl.store(PULLS + at, pull, mask=rows < T)
    shifts = tl.load(SHIFTS + at, mask=rows < T, other=0.0)
    if SUMS is not None:
        SUMS += head.to(tl.int64) * T
    else:
        shifts *= LOG2E  # of lse
    dq = tl.zeros((HIGH, DEPTH), tl.float32)
    low = rows
    if STARTS is not None:
        STARTS += b * T
    if LIMITED:
        low = lowest(STARTS, rows, T, shift, WINDOW)
        tl.store(LOWS + b * T + rows, low, mask=rows < tl.where(h == 0, T, 0))
    first, middle, free, last = spans(block, low, S, shift, CAUSAL, LIMITED, HIGH, WIDE)
    if LIMITED:
        dq = _slopes_of_queries(
            dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, low, first, middle, S, shift, scale * LOG2E,
            True, CAUSAL, LIMITED, WIDE, D, DEPTH,
        )  # fmt: skip
    dq = _slopes_of_queries(
        dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, low, middle, free, S, shift, scale * LOG2E,
        False, CAUSAL, LIMITED, WIDE, D, DEPTH,
    )  # fmt: skip
    dq = _slopes_of_queries(
        dq, q, dy, shifts, SUMS, pull, K, V, k_row, v_row, rows, low, free, last, S, shift, scale * LOG2E,
        True, CAUSAL, LIMITED, WIDE, D, DEPTH,
    )  # fmt: skip
    store(DQ + b * dq_batch + h * D, rows, dq_row, T, dq * scale, D, DEPTH)


@triton.jit
def _slopes_of_keys(
    dk, dv, k, v, Q, DY, SHIFTS, SUMS, PULLS, LOWS, q_row, dy_row, cols, heads, first, last, T, shift, scale,
    MASKED: tl.constexpr, ALONE: tl.constexpr, CAUSAL: tl.constexpr,
    HIGH: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Everything transposed: keys down, queries across. A query beyond the last has q = dy = shift = pull = 0, and
    adds nothing. One loop goes along the queries of all heads, or of the one that there is where it is ALONE: one loop
    within another would take half as many registers again, and begin anew with each head."""
    across = tl.maximum(tl.cdiv(last - first, HIGH), 0)
    for number in range(heads * across):
        head = 0
        if not ALONE:
            # Loads are begun ahead, for what may turn out to be nothing. By 0 nothing may be divided, so a compiler
            # would take it that there is something, and load from beyond the end.
            head = number // tl.maximum(across, 1)
        rows = first + (number - head * across) * HIGH + tl.arange(0, HIGH)
        q = tile(Q + head * D, rows, q_row, T, MASKED, D, DEPTH)
        dy = tile(DY + head * D, rows, dy_row, T, MASKED, D, DEPTH).to(v.dtype)
        at = head * T + rows
        if MASKED:
            shifts = tl.load(SHIFTS + at, mask=rows < T, other=0.0)
            pull = tl.load(PULLS + at, mask=rows < T, other=0.0)
        else:
            shifts, pull = tl.load(SHIFTS + at), tl.load(PULLS + at)
        if SUMS is None:
            shifts *= LOG2E  # of lse
        p = tl.exp2(dot(k, tl.trans(q)) * scale - shifts[None, :])
        if SUMS is not None:
            p /= tl.load(SUMS + at, mask=rows < T, other=1.0)[None, :]
        if MASKED and CAUSAL:
            p = tl.where(cols[:, None] <= rows[None, :] + shift, p, 0.0)
        if MASKED and LOWS is not None:
            p = tl.where(cols[:, None] >= tl.load(LOWS + rows, mask=rows < T, other=0)[None, :], p, 0.0)
        dv += dot(p.to(dy.dtype), dy)  # (4)
        ds = p * (dot(v, tl.trans(dy)) - pull[None, :])  # (5)
        dk += dot(ds.to(q.dtype), q)  # (6)
    return dk, dv


@triton.jit
def _who_sees(LOWS, first, top, bottom, T, PLACES: tl.constexpr):
    """Among the queries from `first` on: one past the last that sees a key as low as `bottom`, by the first key it sees
    at all, and the first that does not see all down to `top`."""
    end, hides = first, T
    for at in range(first, T, PLACES):
        rows = at + tl.arange(0, PLACES)
        low = tl.load(LOWS + rows, mask=rows < T, other=0)
        end = tl.maximum(end, tl.max(tl.where((low <= bottom) & (rows < T), rows + 1, 0), 0))
        hides = tl.minimum(hides, tl.min(tl.where((low > top) & (rows < T), rows, T), 0))
    return end, hides


@triton.jit
def _backward_keys(
    DK, DV, DY, Q, K, V, SHIFTS, SUMS, PULLS, LOWS,
    dk_batch, dk_row, dv_batch, dv_row, dy_batch, dy_row, q_batch, q_row, k_batch, k_row, v_batch, v_row,
    together, B, T, S, H, scale, CAUSAL: tl.constexpr, SHARE: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    shared = H // SHARE
    block, rest = mine(tl.cdiv(S, WIDE), together)
    part, head = rest % PARTS, rest // PARTS  # a head of keys, and which of the heads that share it
    b, h = (head // shared).to(tl.int64), head % shared
    cols, shift = block * WIDE + tl.arange(0, WIDE), S - T
    k = tile(K + b * k_batch + h * D, cols, k_row, S, True, D, DEPTH)
    v = tile(V + b * v_batch + h * D, cols, v_row, S, True, D, DEPTH)
    dk, dv = tl.zeros((WIDE, DEPTH), tl.float32), tl.zeros((WIDE, DEPTH), tl.float32)
    # Queries that see some of these keys, then those that see all of them, then the rest, of which some may be missing.
    some, free, full, last = 0, 0, T // HIGH * HIGH, T
    if CAUSAL:
        some = tl.maximum(block * WIDE - shift, 0) // HIGH * HIGH
        free = tl.cdiv(tl.maximum(block * WIDE + WIDE - 1 - shift, 0), HIGH) * HIGH
        free = tl.minimum(free, tl.cdiv(T, HIGH) * HIGH)
    if LOWS is not None:
        LOWS += b * T
        last, hides = _who_sees(LOWS, some, block * WIDE, block * WIDE + WIDE - 1, T, PLACES)
        full = tl.minimum(full, hides // HIGH * HIGH)
        free = tl.minimum(free, tl.maximum(last, some))
    full = tl.maximum(full, free)
    first, heads = part * SHARE // PARTS, SHARE // PARTS  # of those that share these keys, the part's own
    if SHARE % PARTS:
        heads = (part + 1) * SHARE // PARTS - first
    own = h * SHARE + first
    at = (b * H + own) * T
    sums = SUMS
    if SUMS is not None:
        sums = SUMS + at
    q, dy = Q + b * q_batch + own * D, DY + b * dy_batch + own * D
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, q, dy, SHIFTS + at, sums, PULLS + at, LOWS, q_row, dy_row, cols, heads, some, free, T, shift,
        scale * LOG2E, True, SHARE == PARTS, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, q, dy, SHIFTS + at, sums, PULLS + at, LOWS, q_row, dy_row, cols, heads, free, full, T, shift,
        scale * LOG2E, False, SHARE == PARTS, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    dk, dv = _slopes_of_keys(
        dk, dv, k, v, q, dy, SHIFTS + at, sums, PULLS + at, LOWS, q_row, dy_row, cols, heads, full, last, T, shift,
        scale * LOG2E, True, SHARE == PARTS, CAUSAL, HIGH, D, DEPTH,
    )  # fmt: skip
    to = part * B + b
    store(DK + to * dk_batch + h * D, cols, dk_row, S, dk * scale, D, DEPTH)
    store(DV + to * dv_batch + h * D, cols, dv_row, S, dv, D, DEPTH)


@triton.jit
def _add_parts(
    DK, DV, DKS, DVS, dk_batch, dk_row, dv_batch, dv_row, B, S, E, PARTS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    b, s = tl.program_id(0).to(tl.int64) // S, tl.program_id(0) % S
    e = tl.arange(0, WIDTH)
    dk, dv = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for part in range(PARTS):
        at = ((part * B + b) * S + s) * E + e
        dk += numbers(DKS + at, e < E)
        dv += numbers(DVS + at, e < E)
    tl.store(DK + b * dk_batch + s * dk_row + e, dk, mask=e < E)
    tl.store(DV + b * dv_batch + s * dv_row + e, dv, mask=e < E)
