"""Products of bfloat16 matrices, summed in float32, stored as float32 or rounded once.

As `products.py` divides c among threads and packs, this does. Where k is deeper than `DEEP` the sums of a block wait in
float32 until the next part of k continues them, so that each is rounded once. Their order is given by k alone.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import float32, intp, prange, types, uintp
from numpy.typing import NDArray

from tapeless.kernels.cpu.bfloat16 import is_bfloat16
from tapeless.kernels.cpu.compile import Kernel, strided
from tapeless.kernels.cpu.dispatch import A_BFLOAT16, B_BFLOAT16, TRANSPOSED
from tapeless.kernels.cpu.functions import c_function
from tapeless.kernels.cpu.gemm_float32 import FAR, SGEMM, cut, thread_grid
from tapeless.kernels.cpu.microkernels_bfloat16 import (
    AT_ONCE,
    BYTES,
    SIDE,
    amx_begin,
    amx_end,
    amx_permitted,
    amx_tiles,
    avx512_half_tile,
    load_bits,
    pack_tile,
    store_rows,
    store_word,
)
from tapeless.kernels.cpu.microkernels_float32 import LINE, features_of, prefetch_tile, stack_floats
from tapeless.kernels.cpu.numba_internals import config
from tapeless.kernels.cpu.vector import inlined
from tapeless.kernels.native import Native

Array = NDArray[Any]

FEATURES = features_of(config.CPU_FEATURES)
HAS_BFLOAT16 = "avx512bf16" in FEATURES  # which every processor has that has AMX's
AMX = HAS_BFLOAT16 and "amx-bf16" in FEATURES and amx_permitted()
DEPTH = 2 * SIDE  # numbers along k in a tile
BLOCK = 2 * SIDE  # rows and columns that are computed at a time
FLOATS = BLOCK * BLOCK
DEEP = 1024  # along k at a time: the panels of a block of columns stay in the first cache, or nearly
# Bytes of a's panels that are packed at a time, which must stay in the second cache while b's pass by, and of b's.
PACKED_A, PACKED_B = 3 << 18, 2 << 20
# Where all of b's panels stay in the second cache, c is gone through by rows, as it lies in memory; else by columns.
NEAR = 1 << 20
NARROW, ADD = 1, 2  # of c: what is stored is rounded; it is added to what is there

# m, n, k; of a and b: place, distance of rows, whether k is the inner axis, whether they are float32; alpha, bias
RECTANGLE = types.void(
    intp,
    intp,
    intp,
    uintp,
    intp,
    intp,
    intp,
    uintp,
    intp,
    intp,
    intp,
    float32,
    uintp,
    uintp,
    intp,
    intp,
    uintp,
    intp,
    intp,
    uintp,
)
SYMBOL = "tapeless_rectangle_bfloat16"
_rectangle = types.ExternalFunction(SYMBOL, RECTANGLE)
LITTLE, LITTLE_DEEP = 3 << 14, 512  # floats on a thread's stack for the panels of small products; along k at a time


def tiles_along(k: int) -> int:
    return -(-min(k, DEEP) // DEPTH)


def at_a_time(size: int, k: int, packed: int) -> int:
    """Rows of a, or columns of b, whose panels are packed together."""
    most = max(1, packed // (tiles_along(k) * BYTES * 2)) * BLOCK
    return min(most, -(-size // BLOCK) * BLOCK)


def panel_floats(m: int, n: int, k: int) -> tuple[int, int]:
    """Bytes in which the panels of a rectangle fit, and those for its sums, where k is deep."""
    high, wide = at_a_time(m, k, PACKED_A), at_a_time(n, k, PACKED_B)
    sums = -(-m // BLOCK) * wide * BLOCK * 4 if k > DEEP else 0
    return (high + wide) // SIDE * tiles_along(k) * BYTES + LINE, sums


@inlined
def _word(source, row, inner, floats, i, k, depth):
    """Two numbers of column or row i, from k on; 0 beyond the end."""
    if inner:
        low, high = i * row + k, i * row + k + 1
    else:
        low, high = k * row + i, (k + 1) * row + i
    bits = load_bits(intp(floats), source, intp(low))
    return bits | (load_bits(intp(floats), source, intp(high)) << 16) if k + 1 < depth else bits


@inlined
def _pack(to, source, row, inner, floats, count, depth, of_a):
    """Panels, each 16 rows of a, or columns of b, of which `count` are there; the others hold anything, and nobody
    reads their sums. Behind the end of k there are zeros, because what else is there may be no number. In the order in
    which the numbers lie in memory: panel by panel where k is the inner axis, else all panels a tile's depth at a time.
    """
    panels, tiles = -(-count // SIDE), -(-depth // DEPTH)
    if inner:
        for panel in range(panels):
            begin, there = source + uintp(panel * SIDE * row * (4 if floats else 2)), min(SIDE, count - panel * SIDE)
            for tile in range(tiles):
                place = to + uintp((panel * tiles + tile) * BYTES)
                _pack_inner(place, begin, row, floats, there, tile * DEPTH, depth, of_a)
    else:
        for tile in range(tiles):
            for panel in range(panels):
                begin, there = source + uintp(panel * SIDE * (4 if floats else 2)), min(SIDE, count - panel * SIDE)
                place = to + uintp((panel * tiles + tile) * BYTES)
                _pack_outer(place, begin, row, floats, there, tile * DEPTH, depth, of_a)


@inlined
def _pack_inner(place, source, row, floats, count, at, depth, of_a):
    if at + DEPTH > depth:
        _pack_end(place, source, row, True, floats, count, at, depth, of_a)
        return
    begin, last = source + uintp(at * (4 if floats else 2)), intp(count - 1)
    if of_a and floats:
        pack_tile(1, 0, 0, place, begin, intp(row * 4), last)
    elif of_a:
        pack_tile(0, 0, 0, place, begin, intp(row * 2), last)
    elif floats:
        pack_tile(1, 0, 1, place, begin, intp(row * 4), last)
    else:
        pack_tile(0, 0, 1, place, begin, intp(row * 2), last)


@inlined
def _pack_outer(place, source, row, floats, count, at, depth, of_a):
    if at + DEPTH > depth or count < SIDE:
        _pack_end(place, source, row, False, floats, count, at, depth, of_a)
        return
    begin = source + uintp(at * row * (4 if floats else 2))
    if of_a and floats:
        pack_tile(1, 1, 1, place, begin, intp(row * 4), intp(0))
    elif of_a:
        pack_tile(0, 1, 1, place, begin, intp(row * 2), intp(0))
    elif floats:
        pack_tile(1, 1, 0, place, begin, intp(row * 4), intp(0))
    else:
        pack_tile(0, 1, 0, place, begin, intp(row * 2), intp(0))


@inlined
def _pack_end(place, source, row, inner, floats, count, at, depth, of_a):
    for i in range(SIDE):
        for word in range(SIDE):
            k = at + 2 * word
            bits = _word(source, row, inner, floats, i, k, depth) if i < count and k < depth else 0
            store_word(place, intp(i * SIDE + word if of_a else word * SIDE + i), intp(bits))


@inlined
def _block(k, upper, lower, left, right, to, first):
    if AMX:
        amx_tiles(k, upper, lower, left, right, to, first)
    else:
        for half in range(0, SIDE, AT_ONCE):
            avx512_half_tile(k, upper + uintp(half * SIDE * 4), left, right, to + uintp(half * BLOCK * 4), first)
            below = to + uintp((SIDE + half) * BLOCK * 4)
            avx512_half_tile(k, lower + uintp(half * SIDE * 4), left, right, below, first)


@inlined
def _fetch(place, row, rows, kind):
    """Of a block that is as high as the others: a row is one line, or two in float32."""
    if rows == BLOCK and kind & NARROW:
        prefetch_tile(BLOCK, 1, place, intp(row * 2))
    elif rows == BLOCK:
        prefetch_tile(BLOCK, 2, place, intp(row * 4))


@inlined
def _finish(block, place, row, rows, columns, kind, alpha, bias):
    rows, columns, apart = intp(rows), intp(columns), intp(row * (2 if kind & NARROW else 4))
    if kind == NARROW:
        store_rows(1, 0, block, rows, columns, alpha, bias, place, apart)
    elif kind == ADD:
        store_rows(0, 1, block, rows, columns, alpha, bias, place, apart)
    elif kind == NARROW | ADD:
        store_rows(1, 1, block, rows, columns, alpha, bias, place, apart)
    else:
        store_rows(0, 0, block, rows, columns, alpha, bias, place, apart)


def rectangle_of_bfloat16(
    m,
    n,
    k,
    a,
    a_row,
    a_inner,
    a_floats,
    b,
    b_row,
    b_inner,
    b_floats,
    alpha,
    bias,
    c,
    c_row,
    kind,
    room,
    high,
    wide,
    sums,
):
    """`a_inner`, `b_inner`: whether the numbers of a row of memory follow each other along k."""
    if AMX:
        amx_begin()
    alone, size = stack_floats(FLOATS), 2 if kind & NARROW else 4
    size_a, size_b = 4 if a_floats else 2, 4 if b_floats else 2
    step_a, along_a = (a_row, 1) if a_inner else (1, a_row)
    step_b, along_b = (b_row, 1) if b_inner else (1, b_row)
    room = room + uintp(-room & uintp(LINE - 1))  # tiles whose rows lie across two lines are loaded far more slowly
    far = m * n >= FAR
    for left in range(0, n, wide):
        columns = min(wide, n - left)
        for begin in range(0, k, DEEP):
            depth = min(DEEP, k - begin)
            tiles = -(-depth // DEPTH)
            panel = tiles * BYTES
            source = b + uintp((left * step_b + begin * along_b) * size_b)
            _pack(room, source, b_row, b_inner, b_floats, columns, depth, False)
            packed_a = room + uintp(-(-columns // BLOCK) * 2 * panel)
            for top in range(0, m, high):
                rows = min(high, m - top)
                source = a + uintp((top * step_a + begin * along_a) * size_a)
                _pack(packed_a, source, a_row, a_inner, a_floats, rows, depth, True)
                downs, acrosses = -(-rows // BLOCK), -(-columns // BLOCK)
                by_rows = 2 * acrosses * panel <= NEAR
                for number in range(downs * acrosses):
                    down = (number // acrosses if by_rows else number % downs) * BLOCK
                    across = (number % acrosses if by_rows else number // downs) * BLOCK
                    upper, beside = packed_a + uintp(down // SIDE * panel), room + uintp(across // SIDE * panel)
                    block = sums + uintp(((top + down) * wide + across * BLOCK) * 4) if k > DEEP else alone
                    first = intp(begin == 0)
                    place = c + uintp(((top + down) * c_row + left + across) * size)
                    if far and begin + depth == k:
                        _fetch(place, c_row, min(BLOCK, rows - down), kind)
                    _block(intp(tiles), upper, upper + uintp(panel), beside, beside + uintp(panel), block, first)
                    if begin + depth == k:
                        high_here, wide_here = min(BLOCK, rows - down), min(BLOCK, columns - across)
                        shift = bias + uintp((left + across) * 2) if bias else bias
                        _finish(block, place, c_row, high_here, wide_here, kind, alpha, shift)
    if AMX:
        amx_end()


@cache
def rectangle() -> Any:
    """Under a name by which kernels find it. On disk it has one for either kind of instructions: a process that may not
    use AMX must not be handed what another one that may has compiled."""
    original = rectangle_of_bfloat16
    clone = FunctionType(original.__code__, original.__globals__, original.__name__)
    clone.__qualname__, clone.__module__ = f"{original.__name__}_{'amx' if AMX else 'avx512'}", original.__module__
    function = c_function(RECTANGLE, clone)
    llvm.add_symbol(SYMBOL, function.address)
    return function


@cache
def small_gemm_function() -> Any:
    """A product that is called as a BLAS's is, by any thread, on matrices that are small; `order` tells their types."""
    rectangle()
    return c_function(SGEMM, small_gemm_bfloat16).ctypes


def gemm_address() -> int:
    return ctypes.cast(small_gemm_function(), ctypes.c_void_p).value or 0


def small_gemm_bfloat16(order, turned_a, turned_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c = alpha · a @ b in float32, to which c is added where beta is 1, on the stack of whoever calls."""
    room = stack_floats(LITTLE)
    a_floats, b_floats = intp(0 if order & A_BFLOAT16 else 1), intp(0 if order & B_BFLOAT16 else 1)
    a_inner, b_inner = intp(0 if turned_a == TRANSPOSED else 1), intp(1 if turned_b == TRANSPOSED else 0)
    step_a, step_b = (
        (1 if a_inner else a_row) * (4 if a_floats else 2),
        (1 if b_inner else b_row) * (4 if b_floats else 2),
    )
    for begin in range(0, k, LITTLE_DEEP):
        depth = min(LITTLE_DEEP, k - begin)
        most = (LITTLE * 4 - LINE) // (-(-depth // DEPTH) * BYTES * 4) * BLOCK
        kind = intp(ADD if begin > 0 or beta != 0 else 0)
        _rectangle(
            m,
            n,
            intp(depth),
            a + uintp(begin * step_a),
            a_row,
            a_inner,
            a_floats,
            b + uintp(begin * step_b),
            b_row,
            b_inner,
            b_floats,
            alpha,
            uintp(0),
            c,
            c_row,
            kind,
            room,
            intp(most),
            intp(most),
            uintp(0),
        )


def rectangles_of_bfloat16(
    across,
    down,
    m,
    n,
    k,
    c,
    c_row,
    kind,
    a,
    a_row,
    a_inner,
    a_floats,
    b,
    b_row,
    b_inner,
    b_floats,
    bias,
    rooms,
    sums,
    high,
    wide,
):
    for worker in prange(across * down):
        i, j = worker // across, worker % across
        top, bottom = cut(m, BLOCK, i, down), cut(m, BLOCK, i + 1, down)
        left, right = cut(n, BLOCK, j, across), cut(n, BLOCK, j + 1, across)
        own_a = uintp(a.ctypes.data) + uintp(top * (a_row if a_inner else 1) * (4 if a_floats else 2))
        own_b = uintp(b.ctypes.data) + uintp(left * (b_row if b_inner else 1) * (4 if b_floats else 2))
        own_c = uintp(c.ctypes.data) + uintp((top * c_row + left) * (2 if kind & NARROW else 4))
        shift = uintp(0) if bias is None else uintp(bias.ctypes.data) + uintp(left * 2)
        _rectangle(
            intp(bottom - top),
            intp(right - left),
            intp(k),
            own_a,
            intp(a_row),
            intp(a_inner),
            intp(a_floats),
            own_b,
            intp(b_row),
            intp(b_inner),
            intp(b_floats),
            float32(1),
            shift,
            own_c,
            intp(c_row),
            intp(kind),
            uintp(rooms[worker].ctypes.data),
            intp(high),
            intp(wide),
            uintp(rooms[worker].ctypes.data) + uintp(sums),
        )


RECTANGLES = Kernel(rectangles_of_bfloat16)


def _division(m: int, n: int, k: int, workers: int) -> tuple[int, int, int, int]:
    """Rectangles side by side and one below the other, and the bytes that each has for panels and for sums, both whole
    cache lines."""
    across, down = thread_grid(m, n, workers, BLOCK, BLOCK)
    packed, sums = panel_floats(-(-m // down) + BLOCK, -(-n // across) + BLOCK, k)
    return across, down, packed, sums


def scratch_floats(m: int, n: int, k: int, workers: int) -> int:
    """Of scratch, in which a product on so many threads packs and, where k is deep, sums."""
    across, down, packed, sums = _division(m, n, k, workers)
    return (across * down * (packed + sums) + LINE) // 4


def bound(
    c: Array,
    a: Array,
    b: Array,
    turn_a: bool,
    turn_b: bool,
    add: bool,
    workers: int,
    scratch: Array,
    bias: Array | None,
) -> Native:
    """c = a @ b + bias, or c += a @ b: a and b are bfloat16, or float32 that is rounded; so is c."""
    (m, n), k = c.shape, a.shape[0 if turn_a else 1]
    across, down, packed, sums = _division(m, n, k, workers)
    high = at_a_time(-(-m // down) + BLOCK, k, PACKED_A)
    wide = at_a_time(-(-n // across) + BLOCK, k, PACKED_B)
    begin = -scratch.ctypes.data % LINE // 4
    each = (packed + sums) // 4
    rooms = scratch[begin : begin + across * down * each].reshape(across * down, each)
    (c, c_row), (a, a_row), (b, b_row) = (strided(matrix) for matrix in (c, a, b))
    kind = (NARROW if is_bfloat16(c) else 0) | (ADD if add else 0)
    of_a, of_b = (a_row, int(not turn_a), int(not is_bfloat16(a))), (b_row, int(turn_b), int(not is_bfloat16(b)))
    function = rectangle().ctypes
    a, b, c = (matrix.view(np.uint8) for matrix in (a, b, c))  # one type for all of them
    shift = None if bias is None else bias.view(np.uint8)
    if across * down > 1:
        given = (c, c_row, kind, a, *of_a, b, *of_b, shift, rooms, packed, high, wide)
        return RECTANGLES.bind(m * n, across, down, m, n, k, *given, threads=across * down)
    integer, address = ctypes.c_int64, ctypes.c_uint64
    return partial(
        function,
        integer(m),
        integer(n),
        integer(k),
        address(a.ctypes.data),
        *map(integer, of_a),
        address(b.ctypes.data),
        *map(integer, of_b),
        ctypes.c_float(1),
        address(0 if shift is None else shift.ctypes.data),
        address(c.ctypes.data),
        integer(c_row),
        integer(kind),
        address(rooms.ctypes.data),
        integer(high),
        integer(wide),
        address(rooms.ctypes.data + packed),
    )
