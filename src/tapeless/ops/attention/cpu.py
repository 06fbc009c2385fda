"""Attention on the CPU, in strips: a block of queries against all the keys it may see.

The scores of one strip are all of the T×S array that ever exists, once per thread, in that thread's own cache; what a
causal mask would hide to the right of a strip, or a window or a document's beginning to its left, is never computed.
The products of a strip are called from inside the parallel loop.
"""

from __future__ import annotations

from math import log, sqrt

from numba import float32, intp, prange, uintp

from tapeless.kernels.cpu import (
    A_BFLOAT16,
    B_BFLOAT16,
    NOT_TRANSPOSED,
    ROW_MAJOR,
    TRANSPOSED,
    Kernel,
    block_count,
    call_gemm,
    calling_gemm,
    exp,
    gemm_address,
    inlined,
    is_bfloat16,
    largest,
    plus,
    strided,
    tasks_of,
)
from tapeless.kernels.native import Native
from tapeless.ops.attention import cpu_few
from tapeless.ops.attention.scratch import STRIP, THREADED_WORK

R, N, T = ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED


def gemm_for(q, keys, width):
    """The address of the GEMM that multiplies q's type by itself and float32 by it."""
    return gemm_address(is_bfloat16(q), min(STRIP, q.shape[1]), keys, width)


def forward(y, lse, q, k, v, starts, causal, window, scratch) -> list[Native]:
    strips, *sums = scratch
    if cpu_few.is_few(q, k, lse.shape[1], starts, causal, window):
        return [cpu_few.forward(y, lse, q, k, v, causal, len(strips), THREADED_WORK)]
    product = gemm_for(q, k.shape[1], q.shape[2] // lse.shape[1])
    arguments = (y, lse, q, k, v, starts, strips, *(sums or (None,)), product, causal, window)
    native = ATTENTION.bind(q.size * k.shape[1], *arguments, threaded_from=THREADED_WORK)
    return calling_gemm(native, len(strips))


def backward(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window, scratch) -> list[Native]:
    strips, parts, sums = scratch[0], scratch[1:3], scratch[3:]
    width = q.shape[2] // lse.shape[1]
    found = parts or (dk, dv)
    if cpu_few.is_few(q, k, lse.shape[1], starts, causal, window):
        natives = [cpu_few.backward(dq, found, dy, q, k, v, lse.shape[1], causal, len(strips), THREADED_WORK)]
    else:
        rooms = (strips, *(sums or (None,)), gemm_for(q, k.shape[1], width))
        arguments = (dq, *found, dy, q, k, v, starts, lse.shape[1], *rooms, causal, window)
        native = ATTENTION_BACKWARD.bind(2 * q.size * k.shape[1], *arguments, threaded_from=THREADED_WORK)
        natives = calling_gemm(native, len(strips))
    for total, part in zip((dk, dv), parts, strict=False):
        rows = (total.reshape(-1, total.shape[2], copy=False), part.reshape(-1, part.shape[2], copy=False))
        natives.append(SUM_OF_GROUPS.bind(part.size, *rows[0].shape, *strided(*rows), width))
    return natives


@inlined
def _orders(q):
    """How a product is told of types: float32 times q's, and q's times q's."""
    narrow = 1 if q.itemsize == 2 else 0
    return R + narrow * B_BFLOAT16, R + narrow * (A_BFLOAT16 + B_BFLOAT16)


@inlined
def _first(starts, b, i, own, window):
    """The first key that query i, which stands at `own`, may see."""
    first = max(0, own - window + 1) if window > 0 else 0
    if starts is not None:
        first = max(first, min(starts[b, i], own))
    return first


@inlined
def _first_of_strip(starts, b, at, rows, before, window):
    low = _first(starts, b, at, at + before, window)
    if starts is not None:
        for i in range(1, rows):
            low = min(low, _first(starts, b, at + i, at + i + before, window))
    return low


def attention(y, lse, q, k, v, starts, scratch, sums, product, causal, window):
    """q, k and v may be columns of one buffer: rows and sequences lie any distance apart."""
    batch, queries, channels = q.shape
    keys, heads = k.shape[1], lse.shape[1]
    width, workers, height, ld = channels // heads, scratch.shape[0], scratch.shape[1], scratch.shape[2]
    blocks, group, before = block_count(queries, height), channels // k.shape[2], keys - queries
    scale, (right, both) = float32(1.0 / sqrt(width)), _orders(q)
    for worker in prange(workers):
        strip = scratch[worker]
        begin, end, step = tasks_of(batch * heads, worker, workers, blocks)
        for task in range(begin, end, step):
            b, h, block = task // (heads * blocks), task // blocks % heads, task % blocks
            at, shift, shared = block * height, h * width * q.itemsize, h // group * width * q.itemsize
            rows = min(height, queries - at)
            low = _first_of_strip(starts, b, at, rows, before, window)
            seen = (min(keys, at + rows + before) if causal else keys) - low
            q_at = uintp(q.ctypes.data) + uintp(b * q.strides[0] + at * q.strides[1] + shift)
            k_at = uintp(k.ctypes.data) + uintp(b * k.strides[0] + low * k.strides[1] + shared)
            v_at = uintp(v.ctypes.data) + uintp(b * v.strides[0] + low * v.strides[1] + shared)
            y_at = uintp(y.ctypes.data) + uintp(b * y.strides[0] + at * y.strides[1] + shift)
            strip_at = uintp(strip.ctypes.data)
            ldq, ldk = intp(q.strides[1] // q.itemsize), intp(k.strides[1] // q.itemsize)
            ldv, ldy = intp(v.strides[1] // q.itemsize), intp(y.strides[1] // q.itemsize)
            m, n, w, zero, one = intp(rows), intp(seen), intp(width), float32(0), float32(1)
            call_gemm(
                product, intp(both), intp(N), intp(T), m, n, w, scale, q_at, ldq, k_at, ldk, zero, strip_at, intp(ld)
            )  # (1)
            for i in range(rows):
                mine = min(seen, at + i + 1 + before - low) if causal else seen
                first = _first(starts, b, at + i, at + i + before, window) - low
                lse[b, h, at + i] = _softmax(strip[i, :seen], first, mine)  # (2)
            if sums is not None:
                y_at, ldy = uintp(sums[worker].ctypes.data), w
            call_gemm(
                product, intp(right), intp(N), intp(N), m, w, n, one, strip_at, intp(ld), v_at, ldv, zero, y_at, ldy
            )  # (3)
            if sums is not None:
                y[b, at : at + rows, h * width : (h + 1) * width] = sums[worker, :rows]


@inlined
def _softmax(row, first, seen):
    """The row becomes its softmax over what is seen, 0 before and beyond; returns the log-sum-exp."""
    visible = row[first:seen]
    most = largest(visible)
    total = float32(0)
    for j in range(visible.size):
        e = exp(visible[j] - most)
        visible[j] = e
        total = plus(total, e)
    inverse = float32(1) / total
    for j in range(visible.size):
        visible[j] *= inverse
    row[:first] = float32(0)
    row[seen:] = float32(0)
    return most + float32(log(total))


def attention_backward(dq, dk, dv, dy, q, k, v, starts, heads, scratch, sums, product, causal, window):
    """A head is one thread's, with dk and dv of its own also where keys are shared. Its strips go from the last, which
    sees every key but those before its first and so writes all of dk and dv, to the first; those after the last add.

    lse and y are not asked: a float32 of 1e8 holds no logarithm of a sum, and dy · y has another rounding than the dp
    it is taken from. The scores know their own largest and their own sum."""
    batch, queries, channels = q.shape
    keys = k.shape[1]
    width, workers, height, ld = channels // heads, scratch.shape[0], scratch.shape[2], scratch.shape[3]
    blocks, group, before = block_count(queries, height), channels // k.shape[2], keys - queries
    scale, (right, both) = float32(1.0 / sqrt(width)), _orders(q)
    for worker in prange(workers):
        p, ds = scratch[worker, 0], scratch[worker, 1]
        p_at, ds_at = uintp(p.ctypes.data), uintp(ds.ctypes.data)
        begin, end, step = tasks_of(batch * heads, worker, workers, 1)
        for head in range(begin, end, step):
            b, h = head // heads, head % heads
            shift, shared = h * width * q.itemsize, h // group * width * q.itemsize
            own = h * width * dk.itemsize
            ldq, ldk, ldv = (
                intp(q.strides[1] // q.itemsize),
                intp(k.strides[1] // q.itemsize),
                intp(v.strides[1] // q.itemsize),
            )
            ldy = intp(dy.strides[1] // q.itemsize)
            lddk, lddv = intp(dk.strides[1] // dk.itemsize), intp(dv.strides[1] // dv.itemsize)
            for block in range(blocks - 1, -1, -1):
                at = block * height
                rows = min(height, queries - at)
                low = _first_of_strip(starts, b, at, rows, before, window)
                seen = (min(keys, at + rows + before) if causal else keys) - low
                if block == blocks - 1:
                    dk[b, :low, h * width : (h + 1) * width] = float32(0)
                    dv[b, :low, h * width : (h + 1) * width] = float32(0)
                k_at = uintp(k.ctypes.data) + uintp(b * k.strides[0] + low * k.strides[1] + shared)
                v_at = uintp(v.ctypes.data) + uintp(b * v.strides[0] + low * v.strides[1] + shared)
                dk_at = uintp(dk.ctypes.data) + uintp(b * dk.strides[0] + low * dk.strides[1] + own)
                dv_at = uintp(dv.ctypes.data) + uintp(b * dv.strides[0] + low * dv.strides[1] + own)
                q_at = uintp(q.ctypes.data) + uintp(b * q.strides[0] + at * q.strides[1] + shift)
                dq_at = uintp(dq.ctypes.data) + uintp(b * dq.strides[0] + at * dq.strides[1] + shift)
                dy_at = uintp(dy.ctypes.data) + uintp(b * dy.strides[0] + at * dy.strides[1] + shift)
                m, n, w, zero, one = intp(rows), intp(seen), intp(width), float32(0), float32(1)
                beta = zero if block == blocks - 1 else one
                call_gemm(
                    product, intp(both), intp(N), intp(T), m, n, w, scale, q_at, ldq, k_at, ldk, zero, p_at, intp(ld)
                )  # (1)
                call_gemm(
                    product, intp(both), intp(N), intp(T), m, n, w, one, dy_at, ldy, v_at, ldv, zero, ds_at, intp(ld)
                )  # (4)
                for i in range(rows):
                    mine = min(seen, at + i + 1 + before - low) if causal else seen
                    first = _first(starts, b, at + i, at + i + before, window) - low
                    _weights_and_slopes(p[i, :seen], ds[i, :seen], first, mine)  # (2) (5)
                call_gemm(
                    product, intp(right), intp(T), intp(N), n, w, m, one, p_at, intp(ld), dy_at, ldy, beta, dv_at, lddv
                )
                call_gemm(
                    product,
                    intp(right),
                    intp(T),
                    intp(N),
                    n,
                    w,
                    m,
                    scale,
                    ds_at,
                    intp(ld),
                    q_at,
                    ldq,
                    beta,
                    dk_at,
                    lddk,
                )
                lddq = intp(dq.strides[1] // q.itemsize)
                if sums is not None:
                    dq_at, lddq = uintp(sums[worker].ctypes.data), w
                call_gemm(
                    product,
                    intp(right),
                    intp(N),
                    intp(N),
                    m,
                    w,
                    n,
                    scale,
                    ds_at,
                    intp(ld),
                    k_at,
                    ldk,
                    zero,
                    dq_at,
                    lddq,
                )
                if sums is not None:
                    dq[b, at : at + rows, h * width : (h + 1) * width] = sums[worker, :rows]


@inlined
def _weights_and_slopes(p, ds, first, seen):
    """From scores and dp to p and ds, in place. Where one key has all the weight, ds is exactly 0."""
    weights, slopes = p[first:seen], ds[first:seen]
    most = largest(weights)
    total, pull = float32(0), float32(0)
    for j in range(weights.size):
        e = exp(weights[j] - most)
        weights[j] = e
        total = plus(total, e)
        pull = plus(pull, e * slopes[j])
    inverse = float32(1) / total
    pull /= total
    for j in range(weights.size):
        weight = weights[j] * inverse
        weights[j] = weight
        slopes[j] = weight * (slopes[j] - pull)
    p[:first] = float32(0)
    p[seen:] = float32(0)
    ds[:first] = float32(0)
    ds[seen:] = float32(0)


def sum_of_groups(rows, channels, total, total_step, parts, parts_step, width):
    """Of the heads that share one, side by side in `parts`: the gradient of what they share."""
    group = parts_step // channels
    for row in prange(rows):
        for head in range(channels // width):
            to, at = row * total_step + head * width, row * parts_step + head * group * width
            out = total[to : to + width]
            out[:] = parts[at : at + width]
            for each in range(1, group):
                part = parts[at + each * width : at + (each + 1) * width]
                for d in range(width):
                    out[d] += part[d]


ATTENTION, ATTENTION_BACKWARD, SUM_OF_GROUPS = Kernel(attention), Kernel(attention_backward), Kernel(sum_of_groups)
