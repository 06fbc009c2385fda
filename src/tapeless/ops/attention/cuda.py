"""Attention on the GPU: a program has a block of queries, or of keys, in its registers and goes along the other side.

q, k and v are read where they lie, columns of one product or of two, and their gradients are written the same way.
Scores are in base 2: exp2 is what the hardware has. A query sees the keys from its lowest, which a window or the
beginning of its document sets, up to itself: blocks that none of a block's queries sees are passed over, and only those
that some see and others do not are masked. The backward is in `cuda_backward.py`.
"""

from __future__ import annotations

from math import sqrt

import torch
import triton
import triton.language as tl

from tapeless.errors import TapelessError
from tapeless.kernels.cuda.launch import blocks, launch
from tapeless.kernels.native import Native

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3e38)  # of a score, nearly: where a query has seen no key yet, −∞ − −∞ would be NaN
# (queries, keys, warps, stages), measured on an H200 at a depth of 64. float32 takes twice the room.
FORWARD, FLOAT32 = (64, 64, 4, 3), (32, 32, 4, 1)
REGISTERS = 128  # of a thread of the forward and of dk and dv, so that four programs share a multiprocessor
# Programs that are handed out by their length: several for each place on a device, and few enough that what they go
# along, 16 MiB at a depth of 64 in bfloat16, stays in its cache.
TOGETHER = 1024


def forward(y, lse, q, k, v, starts, causal, window) -> list[Native]:
    depth = q.shape[2] // lse.shape[1]
    strides = {"k_strides": (k.stride(0), depth, k.stride(1)), "v_strides": (v.stride(0), depth, v.stride(1))}
    share, limits = q.shape[2] // k.shape[2], {"starts": starts, "window": window}
    return mixed(y, lse, q, k, v, depth, k.shape[1], causal, share=share, **limits, **strides)


def mixed(
    y, lse, q, k, v, depth, keys, causal, share, window, k_strides, v_strides, starts=None, position=None
) -> list[Native]:
    """`share`: how many heads of queries have one of keys. The strides of keys and values: from sequence to sequence,
    head to head, place to place. Where there is a `position`, the first query stands there and sees the keys up to
    itself, however many there are."""
    batch, queries, channels = q.shape
    heads = channels // depth
    high, wide, options = tiles(q, depth, FORWARD)
    options |= seen_by(causal, window, starts, share) | in_registers(q, depth)
    down = blocks(queries, high)
    run = launch(
        _forward,
        down * batch * heads,
        y,
        lse,
        q,
        k,
        v,
        starts,
        position,
        *in_rows(y),
        *in_rows(q),
        *k_strides,
        *v_strides,
        queries,
        keys,
        heads,
        by_length(batch * heads, down, causal, window, share),
        1 / sqrt(depth),
        HIGH=high,
        WIDE=wide,
        **options,
    )
    return [run]


def backward(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window) -> list[Native]:
    from tapeless.ops.attention import cuda_backward

    return cuda_backward.backward(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window)


def seen_by(causal, window, starts, share):
    """What the kernels are made for: which keys a query sees, and how many heads share them."""
    limited = bool(window) or starts is not None
    return {"CAUSAL": bool(causal), "LIMITED": limited, "WINDOW": int(window), "SHARE": share}


def by_length(heads, count, causal, window, share=1):
    """Of how many heads, each with as many blocks, the longest blocks come first. `share` have the same keys."""
    if not causal or window:
        return 1  # their blocks take equally long
    return blocks(heads, blocks(heads, share * blocks(TOGETHER, count)))


def tiles(q, depth, measured):
    high, wide, warps, stages = FLOAT32 if q.dtype == torch.float32 else measured
    if depth > 128:
        high, wide, stages = 32, 32, 1
    padded = max(16, triton.next_power_of_2(depth))
    return high, wide, {"D": depth, "DEPTH": padded, "num_warps": warps, "num_stages": stages}


def in_registers(q, depth):
    return {"maxnreg": REGISTERS} if q.dtype == torch.bfloat16 and depth <= 64 else {}


def in_rows(x):
    """From sequence to sequence, and from place to place; heads stand side by side in the channels."""
    if x.shape[1] * x.stride(1) >= 2**31:  # within a sequence the kernels count in 32 bits, which is faster
        raise TapelessError(f"attention on a GPU cannot reach across {x.shape[1]:,} positions: take a shorter time.")
    return x.stride(0), x.stride(1)


@triton.jit
def mine(count, together):
    """Which block, counted from the longest, of which head is this program's. A device begins programs in their order:
    were all blocks of a head to come before those of the next, some of the longest would begin last, and the device
    would wait for them half empty."""
    first = tl.program_id(0) // (count * together) * together
    heads = tl.minimum(tl.num_programs(0) // count - first, together)
    within = tl.program_id(0) - first * count
    return within // heads, first + within % heads


@triton.jit
def tile(X, rows, stride, limit, MASKED: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr):
    """Rows of one head; 0 beyond the last and beyond its width."""
    d = tl.arange(0, DEPTH)
    at = X + rows[:, None] * stride + d[None, :]
    if MASKED:
        return tl.load(at, mask=(rows < limit)[:, None] & (d < D)[None, :], other=0.0)
    if D < DEPTH:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def store(X, rows, stride, limit, value, D: tl.constexpr, DEPTH: tl.constexpr):
    d = tl.arange(0, DEPTH)
    tl.store(X + rows[:, None] * stride + d[None, :], value, mask=(rows < limit)[:, None] & (d < D)[None, :])


@triton.jit
def dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def lowest(STARTS, rows, T, shift, WINDOW: tl.constexpr):
    """Of each query the first key that it sees. Those beyond the last query see what the last one sees."""
    rows = tl.minimum(rows, T - 1)
    low = tl.zeros_like(rows)
    if STARTS is not None:
        low = tl.minimum(tl.load(STARTS + rows).to(tl.int32), rows + shift)
    if WINDOW:
        low = tl.maximum(low, rows + shift - WINDOW + 1)
    return low


@triton.jit
def seen(rows, low, cols, S, shift, CAUSAL: tl.constexpr, LIMITED: tl.constexpr):
    found = (cols < S)[None, :]
    if CAUSAL:
        found = found & (cols[None, :] <= rows[:, None] + shift)
    if LIMITED:
        found = found & (cols[None, :] >= low[:, None])
    return found


@triton.jit
def spans(block, low, S, shift, CAUSAL: tl.constexpr, LIMITED: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Of a block of queries: the first key that one of them sees, from where to where all see every key, the end."""
    first, middle, free, last = 0, 0, S // WIDE * WIDE, S
    if CAUSAL:
        free, last = (block * HIGH + shift + 1) // WIDE * WIDE, tl.minimum(block * HIGH + HIGH + shift, S)
    if LIMITED:
        first = tl.min(low, 0) // WIDE * WIDE
        middle = tl.minimum(tl.cdiv(tl.max(low, 0), WIDE) * WIDE, free)
    return first, middle, free, last


@triton.jit
def _mix(
    top,
    total,
    mixed,
    q,
    K,
    V,
    k_row,
    v_row,
    rows,
    low,
    first,
    last,
    S,
    shift,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    LIMITED: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Keys from `first` to `last`, with a running maximum and sum."""
    for at in range(first, last, WIDE):
        cols = at + tl.arange(0, WIDE)
        k = tile(K, cols, k_row, S, MASKED, D, DEPTH)
        v = tile(V, cols, v_row, S, MASKED, D, DEPTH)
        s = dot(q, tl.trans(k))  # (1)
        if MASKED:
            s = tl.where(seen(rows, low, cols, S, shift, CAUSAL, LIMITED), s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        mixed = mixed * shrink[:, None] + dot(p.to(v.dtype), v)  # (3)
        top = new
    return top, total, mixed


@triton.jit
def _forward(
    Y,
    LSE,
    Q,
    K,
    V,
    STARTS,
    POSITION,
    y_batch,
    y_row,
    q_batch,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    T,
    S,
    H,
    together,
    scale,
    CAUSAL: tl.constexpr,
    LIMITED: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARE: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    DEPTH: tl.constexpr,
):
    down = tl.cdiv(T, HIGH)
    above, head = mine(down, together)
    block = down - 1 - above
    b, h = (head // H).to(tl.int64), head % H
    rows, shift = block * HIGH + tl.arange(0, HIGH), S - T
    if POSITION is not None:
        shift = tl.load(POSITION).to(tl.int32)
        S = shift + T
    K, V = K + b * k_batch + h // SHARE * k_head, V + b * v_batch + h // SHARE * v_head
    q = tile(Q + b * q_batch + h * D, rows, q_row, T, True, D, DEPTH)
    top = tl.full((HIGH,), LOWEST, tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    mixed = tl.zeros((HIGH, DEPTH), tl.float32)
    low = rows
    if STARTS is not None:
        STARTS += b * T
    if LIMITED:
        low = lowest(STARTS, rows, T, shift, WINDOW)
    first, middle, free, last = spans(block, low, S, shift, CAUSAL, LIMITED, HIGH, WIDE)
    if LIMITED:
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
            low,
            first,
            middle,
            S,
            shift,
            scale * LOG2E,
            True,
            CAUSAL,
            LIMITED,
            WIDE,
            D,
            DEPTH,
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
        low,
        middle,
        free,
        S,
        shift,
        scale * LOG2E,
        False,
        CAUSAL,
        LIMITED,
        WIDE,
        D,
        DEPTH,
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
        low,
        free,
        last,
        S,
        shift,
        scale * LOG2E,
        True,
        CAUSAL,
        LIMITED,
        WIDE,
        D,
        DEPTH,
    )
    store(Y + b * y_batch + h * D, rows, y_row, T, mixed / total[:, None], D, DEPTH)
    if LSE is not None:
        tl.store(LSE + head.to(tl.int64) * T + rows, (top + tl.log2(total)) * LN2, mask=rows < T)  # (2)
