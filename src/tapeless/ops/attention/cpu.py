"""Attention on the CPU, in strips: a block of queries against all the keys it may see.

The scores of one strip are all of the T×S array that ever exists, once per thread, in that thread's own cache; what a
causal mask would hide to the right of a strip is never computed. The products of a strip are the BLAS's, called from
inside the parallel loop.
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt

import llvmlite.binding as llvm
from numba import float32, intp, prange, types, uintp

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import blas, division
from tapeless.kernels.cpu.blas import PLAIN, ROW_MAJOR, TRANSPOSED
from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.vector import exp, inlined, largest, plus
from tapeless.kernels.native import Native, Scratch

# Named, not a number: the machine code in Numba's cache refers to the symbol and is linked when it is loaded.
SYMBOL = "tapeless_sgemm"
sgemm = types.ExternalFunction(
    SYMBOL,
    types.void(intp, intp, intp, intp, intp, intp, float32, uintp, intp, uintp, intp, float32, uintp, intp),
)
R, N, T = ROW_MAJOR, PLAIN, TRANSPOSED
STRIP = 64  # queries
THREADED_WORK = 100_000  # multiplications, below which one thread does it all


def forward_scratch(call) -> list[Scratch]:
    """A strip of scores for every thread."""
    batch, heads, queries, keys = (call.dims[letter] for letter in "BHTS")
    most = batch * heads * division.blocks(queries, STRIP)
    workers = division.workers(call["q"].elements * keys, THREADED_WORK, most)
    return [Scratch((workers, min(STRIP, queries), _row_length(keys)))]


def forward(y, lse, q, k, v, causal, scratch) -> list[Native]:
    _link()
    (strips,) = scratch
    native = ATTENTION.bind(q.size * k.shape[1], y, lse, q, k, v, strips, causal, threaded_from=THREADED_WORK)
    return division.calling_blas(native, len(strips))


def backward_scratch(call) -> list[Scratch]:
    """A strip of weights and one of slopes for every thread."""
    batch, heads, queries, keys = (call.dims[letter] for letter in "BHTS")
    workers = division.workers(2 * call["q"].elements * keys, THREADED_WORK, batch * heads)
    return [Scratch((workers, 2, min(STRIP, queries), _row_length(keys)))]


def backward(dq, dk, dv, dy, q, k, v, y, lse, causal, scratch) -> list[Native]:
    _link()
    (strips,) = scratch
    arguments = (dq, dk, dv, dy, q, k, v, lse.shape[1], strips, causal)
    native = ATTENTION_BACKWARD.bind(2 * q.size * k.shape[1], *arguments, threaded_from=THREADED_WORK)
    return division.calling_blas(native, len(strips))


@cache
def _link() -> None:
    address = blas.sgemm_address()
    if address is None:
        raise TapelessError(
            "attention on the cpu backend needs MKL or an OpenBLAS to call: pip install 'tapeless[mkl]', "
            "or take the reference backend."
        )
    llvm.add_symbol(SYMBOL, address)


def _row_length(keys):
    """Not a power of two: the rows of a strip must not fall onto the same sets of the cache."""
    return -(-keys // 16) * 16 + 16


def attention(y, lse, q, k, v, scratch, causal):
    """q, k and v may be columns of one buffer: rows and sequences lie any distance apart."""
    batch, queries, channels = q.shape
    keys, heads = k.shape[1], lse.shape[1]
    width, workers, height, ld = channels // heads, scratch.shape[0], scratch.shape[1], scratch.shape[2]
    blocks = division.blocks(queries, height)
    scale = float32(1.0 / sqrt(width))
    for worker in prange(workers):
        strip = scratch[worker]
        for task in range(worker, batch * heads * blocks, workers):
            b, h, block = task // (heads * blocks), task // blocks % heads, task % blocks
            at, shift = block * height, h * width * 4
            rows = min(height, queries - at)
            seen = min(keys, at + rows + keys - queries) if causal else keys
            q_at = uintp(q.ctypes.data) + uintp(b * q.strides[0] + at * q.strides[1] + shift)
            k_at = uintp(k.ctypes.data) + uintp(b * k.strides[0] + shift)
            v_at = uintp(v.ctypes.data) + uintp(b * v.strides[0] + shift)
            y_at = uintp(y.ctypes.data) + uintp(b * y.strides[0] + at * y.strides[1] + shift)
            strip_at = uintp(strip.ctypes.data)
            ldq, ldk = intp(q.strides[1] // 4), intp(k.strides[1] // 4)
            ldv, ldy = intp(v.strides[1] // 4), intp(y.strides[1] // 4)
            m, n, w, zero, one = intp(rows), intp(seen), intp(width), float32(0), float32(1)
            sgemm(intp(R), intp(N), intp(T), m, n, w, scale, q_at, ldq, k_at, ldk, zero, strip_at, intp(ld))  # (1)
            for i in range(rows):
                mine = min(seen, at + i + 1 + keys - queries) if causal else keys
                lse[b, h, at + i] = _softmax(strip[i, :seen], mine)  # (2)
            sgemm(intp(R), intp(N), intp(N), m, w, n, one, strip_at, intp(ld), v_at, ldv, zero, y_at, ldy)  # (3)


@inlined
def _softmax(row, seen):
    """The row becomes its softmax over what is seen, 0 beyond; returns the log-sum-exp."""
    visible = row[:seen]
    most = largest(visible)
    total = float32(0)
    for j in range(visible.size):
        e = exp(visible[j] - most)
        visible[j] = e
        total = plus(total, e)
    inverse = float32(1) / total
    for j in range(visible.size):
        visible[j] *= inverse
    row[seen:] = float32(0)
    return most + float32(log(total))


def attention_backward(dq, dk, dv, dy, q, k, v, heads, scratch, causal):
    """A head is one thread's. Its strips go from the last, which sees every key and so writes all of dk and dv, to
    the first; those after the last add.

    lse and y are not asked: a float32 of 1e8 holds no logarithm of a sum, and dy · y has another rounding than the dp
    it is taken from. The scores know their own largest and their own sum."""
    batch, queries, channels = q.shape
    keys = k.shape[1]
    width, workers, height, ld = channels // heads, scratch.shape[0], scratch.shape[2], scratch.shape[3]
    blocks = division.blocks(queries, height)
    scale = float32(1.0 / sqrt(width))
    for worker in prange(workers):
        p, ds = scratch[worker, 0], scratch[worker, 1]
        p_at, ds_at = uintp(p.ctypes.data), uintp(ds.ctypes.data)
        for head in range(worker, batch * heads, workers):
            b, h = head // heads, head % heads
            shift = h * width * 4
            k_at = uintp(k.ctypes.data) + uintp(b * k.strides[0] + shift)
            v_at = uintp(v.ctypes.data) + uintp(b * v.strides[0] + shift)
            dk_at = uintp(dk.ctypes.data) + uintp(b * dk.strides[0] + shift)
            dv_at = uintp(dv.ctypes.data) + uintp(b * dv.strides[0] + shift)
            ldq, ldk, ldv = intp(q.strides[1] // 4), intp(k.strides[1] // 4), intp(v.strides[1] // 4)
            ldy, lddq = intp(dy.strides[1] // 4), intp(dq.strides[1] // 4)
            lddk, lddv = intp(dk.strides[1] // 4), intp(dv.strides[1] // 4)
            for block in range(blocks - 1, -1, -1):
                at = block * height
                rows = min(height, queries - at)
                seen = min(keys, at + rows + keys - queries) if causal else keys
                q_at = uintp(q.ctypes.data) + uintp(b * q.strides[0] + at * q.strides[1] + shift)
                dq_at = uintp(dq.ctypes.data) + uintp(b * dq.strides[0] + at * dq.strides[1] + shift)
                dy_at = uintp(dy.ctypes.data) + uintp(b * dy.strides[0] + at * dy.strides[1] + shift)
                m, n, w, zero, one = intp(rows), intp(seen), intp(width), float32(0), float32(1)
                beta = zero if block == blocks - 1 else one
                sgemm(intp(R), intp(N), intp(T), m, n, w, scale, q_at, ldq, k_at, ldk, zero, p_at, intp(ld))  # (1)
                sgemm(intp(R), intp(N), intp(T), m, n, w, one, dy_at, ldy, v_at, ldv, zero, ds_at, intp(ld))  # (4)
                for i in range(rows):
                    mine = min(seen, at + i + 1 + keys - queries) if causal else keys
                    _weights_and_slopes(p[i, :seen], ds[i, :seen], mine)  # (2) (5)
                sgemm(intp(R), intp(T), intp(N), n, w, m, one, p_at, intp(ld), dy_at, ldy, beta, dv_at, lddv)
                sgemm(intp(R), intp(T), intp(N), n, w, m, scale, ds_at, intp(ld), q_at, ldq, beta, dk_at, lddk)
                sgemm(intp(R), intp(N), intp(N), m, w, n, scale, ds_at, intp(ld), k_at, ldk, zero, dq_at, lddq)


@inlined
def _weights_and_slopes(p, ds, seen):
    """From scores and dp to p and ds, in place. Where one key has all the weight, ds is exactly 0."""
    weights, slopes = p[:seen], ds[:seen]
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
    p[seen:] = float32(0)
    ds[seen:] = float32(0)


ATTENTION, ATTENTION_BACKWARD = Kernel(attention), Kernel(attention_backward)
