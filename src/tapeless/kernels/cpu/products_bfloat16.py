"""Products of bfloat16 matrices, summed in float32, stored as float32 or rounded once.

As `products.py` divides c among threads and packs, this does, but never along k: a sum stays in registers to its end,
so that it is rounded once. Its order is given by k alone.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import float32, int32, intp, prange, types, uintp
from numba.core import config
from numpy.typing import NDArray

from tapeless.kernels.cpu.blas import A_NARROW, B_NARROW, TRANSPOSED
from tapeless.kernels.cpu.compile import THREADED, Kernel, apart
from tapeless.kernels.cpu.narrow import is_narrow
from tapeless.kernels.cpu.products import SGEMM, compiled_function, cut, division_of
from tapeless.kernels.cpu.tiles import features_of, number_at, on_the_stack
from tapeless.kernels.cpu.tiles_bfloat16 import (
    AT_ONCE,
    BYTES,
    SIDE,
    begin_tiles,
    bits_at,
    end_tiles,
    finish_number,
    finish_row,
    four_tiles,
    half_a_tile,
    pack_tile,
    permitted,
    put_word,
)
from tapeless.kernels.cpu.vector import float_of_bits, inlined
from tapeless.kernels.native import Native

Array = NDArray[Any]

FEATURES = features_of(config.CPU_FEATURES)
AMX = "amx-bf16" in FEATURES and permitted()
THERE = AMX or "avx512bf16" in FEATURES
DEPTH = 2 * SIDE  # numbers along k in a tile
BLOCK = 2 * SIDE  # rows and columns that are computed at a time
FLOATS = BLOCK * BLOCK
PACKED = 1 << 20  # bytes of a's panels, and of b's, that are packed at a time: about what the second cache holds
LINE = 64  # bytes of a cache line: a tile whose rows lie across two is loaded at a fifth of the speed
NARROW, ADD = 1, 2  # of c: what is stored is rounded; it is added to what is there

# m, n, k; of a and b: place, distance of rows, whether k is the inner axis, whether they are float32; alpha, bias
RECTANGLE = types.void(
    intp, intp, intp, uintp, intp, intp, intp, uintp, intp, intp, intp, float32, uintp,
    uintp, intp, intp, uintp, intp, intp,
)  # fmt: skip
SYMBOL = "tapeless_rectangle_bfloat16"
_rectangle = types.ExternalFunction(SYMBOL, RECTANGLE)
MOST_DEEP = 4096  # along k in one go: beyond, panels would leave the caches
LITTLE, LITTLE_DEEP = 3 << 14, 512  # floats on a thread's stack for the panels of small products; along k at a time


def tiles_along(k: int) -> int:
    return -(-k // DEPTH)


def at_a_time(size: int, k: int) -> int:
    """Rows of a, or columns of b, whose panels are packed together."""
    most = max(1, PACKED // (tiles_along(k) * BYTES * 2)) * BLOCK
    return min(most, -(-size // BLOCK) * BLOCK)


def room(m: int, n: int, k: int) -> int:
    """Bytes in which the panels of a rectangle fit."""
    return (at_a_time(m, k) + at_a_time(n, k)) // SIDE * tiles_along(k) * BYTES + LINE


@inlined
def _word(source, row, inner, floats, i, k, depth):
    """Two numbers of column or row i, from k on; 0 beyond the end."""
    if inner:
        low, high = i * row + k, i * row + k + 1
    else:
        low, high = k * row + i, (k + 1) * row + i
    bits = bits_at(intp(floats), source, intp(low))
    return bits | (bits_at(intp(floats), source, intp(high)) << 16) if k + 1 < depth else bits


@inlined
def _pack(to, source, row, inner, floats, count, depth, of_a):
    """A panel: 16 rows of a, or columns of b, of which `count` are there; the others hold anything, and nobody reads
    their sums. Behind the end of k there are zeros, because what else is there may be no number."""
    size = 4 if floats else 2
    for at in range(0, depth, DEPTH):
        place = to + uintp(at // DEPTH * BYTES)
        if at + DEPTH <= depth and inner:
            begin, last = source + uintp(at * size), intp(count - 1)
            if of_a and floats:
                pack_tile(1, 0, 0, place, begin, intp(row * 4), last)
            elif of_a:
                pack_tile(0, 0, 0, place, begin, intp(row * 2), last)
            elif floats:
                pack_tile(1, 0, 1, place, begin, intp(row * 4), last)
            else:
                pack_tile(0, 0, 1, place, begin, intp(row * 2), last)
        elif at + DEPTH <= depth and count == SIDE:
            begin = source + uintp(at * row * size)
            if of_a and floats:
                pack_tile(1, 1, 1, place, begin, intp(row * 4), intp(0))
            elif of_a:
                pack_tile(0, 1, 1, place, begin, intp(row * 2), intp(0))
            elif floats:
                pack_tile(1, 1, 0, place, begin, intp(row * 4), intp(0))
            else:
                pack_tile(0, 1, 0, place, begin, intp(row * 2), intp(0))
        else:
            for i in range(SIDE):
                for word in range(SIDE):
                    k = at + 2 * word
                    bits = _word(source, row, inner, floats, i, k, depth) if i < count and k < depth else 0
                    put_word(place, intp(i * SIDE + word if of_a else word * SIDE + i), intp(bits))


@inlined
def _block(k, upper, lower, left, right, to):
    if AMX:
        four_tiles(k, upper, lower, left, right, to)
    else:
        for half in range(0, SIDE, AT_ONCE):
            half_a_tile(k, upper + uintp(half * SIDE * 4), left, right, to + uintp(half * BLOCK * 4))
            below = to + uintp((SIDE + half) * BLOCK * 4)
            half_a_tile(k, lower + uintp(half * SIDE * 4), left, right, below)


@inlined
def _finish(block, place, row, rows, columns, kind, alpha, bias):
    for i in range(rows):
        source = block + uintp(i * BLOCK * 4)
        to = place + uintp(i * row * (2 if kind & NARROW else 4))
        if columns < BLOCK:
            for j in range(columns):
                value = number_at(source, intp(j)) * alpha
                if bias:
                    value += float_of_bits(int32(bits_at(intp(0), bias, intp(j)) << 16))
                finish_number(intp(kind & NARROW), intp(kind & ADD), value, to, intp(j))
        elif kind == NARROW:
            finish_row(1, 0, source, alpha, bias, to)
        elif kind == ADD:
            finish_row(0, 1, source, alpha, bias, to)
        elif kind == NARROW | ADD:
            finish_row(1, 1, source, alpha, bias, to)
        else:
            finish_row(0, 0, source, alpha, bias, to)


def rectangle_of_bfloat16(
    m, n, k, a, a_row, a_inner, a_floats, b, b_row, b_inner, b_floats, alpha, bias, c, c_row, kind, room, high, wide
):
    """`a_inner`, `b_inner`: whether the numbers of a row of memory follow each other along k."""
    if AMX:
        begin_tiles()
    block, size, panel = on_the_stack(FLOATS), 2 if kind & NARROW else 4, -(-k // DEPTH) * BYTES
    step_a, step_b = (
        (a_row if a_inner else 1) * (4 if a_floats else 2),
        (b_row if b_inner else 1) * (4 if b_floats else 2),
    )
    room = room + uintp(-room & uintp(LINE - 1))
    for first in range(0, n, wide):
        columns = min(wide, n - first)
        for at in range(0, columns, SIDE):
            source, count = b + uintp((first + at) * step_b), min(SIDE, columns - at)
            _pack(room + uintp(at // SIDE * panel), source, b_row, b_inner, b_floats, count, k, False)
        packed_a = room + uintp(-(-columns // BLOCK) * 2 * panel)
        for top in range(0, m, high):
            rows = min(high, m - top)
            for at in range(0, rows, SIDE):
                source, count = a + uintp((top + at) * step_a), min(SIDE, rows - at)
                _pack(packed_a + uintp(at // SIDE * panel), source, a_row, a_inner, a_floats, count, k, True)
            for left in range(0, columns, BLOCK):
                shift = bias + uintp((first + left) * 2) if bias else bias
                for at in range(0, rows, BLOCK):
                    upper, beside = packed_a + uintp(at // SIDE * panel), room + uintp(left // SIDE * panel)
                    _block(intp(-(-k // DEPTH)), upper, upper + uintp(panel), beside, beside + uintp(panel), block)
                    place = c + uintp(((top + at) * c_row + first + left) * size)
                    _finish(block, place, c_row, min(BLOCK, rows - at), min(BLOCK, columns - left), kind, alpha, shift)
    if AMX:
        end_tiles()


@cache
def rectangle() -> Any:
    """Under a name by which kernels find it. On disk it has one for either kind of instructions: a process that may not
    use AMX must not be handed what another one that may has compiled."""
    original = rectangle_of_bfloat16
    clone = FunctionType(original.__code__, original.__globals__, original.__name__)
    clone.__qualname__, clone.__module__ = f"{original.__name__}_{'amx' if AMX else 'avx512'}", original.__module__
    function = compiled_function(RECTANGLE, clone)
    llvm.add_symbol(SYMBOL, function.address)
    return function


@cache
def gemm_function() -> Any:
    """A product that is called as a BLAS's is, by any thread, on matrices that are small; `order` tells their types."""
    rectangle()
    return compiled_function(SGEMM, gemm_of_bfloat16).ctypes


def gemm_address() -> int:
    return ctypes.cast(gemm_function(), ctypes.c_void_p).value or 0


def gemm_of_bfloat16(order, turned_a, turned_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c = alpha · a @ b in float32, to which c is added where beta is 1, on the stack of whoever calls."""
    room = on_the_stack(LITTLE)
    a_floats, b_floats = intp(0 if order & A_NARROW else 1), intp(0 if order & B_NARROW else 1)
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
            m, n, intp(depth), a + uintp(begin * step_a), a_row, a_inner, a_floats, b + uintp(begin * step_b), b_row,
            b_inner, b_floats, alpha, uintp(0), c, c_row, kind, room, intp(most), intp(most),
        )  # fmt: skip


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
            intp(bottom - top), intp(right - left), intp(k), own_a, intp(a_row), intp(a_inner), intp(a_floats), own_b,
            intp(b_row), intp(b_inner), intp(b_floats), float32(1), shift, own_c, intp(c_row), intp(kind),
            uintp(rooms[worker].ctypes.data), intp(high), intp(wide),
        )  # fmt: skip


def rounded(c, c_row, wide, rows, columns, add):
    for r in prange(rows):
        to, source = c[r * c_row : r * c_row + columns], wide[r * columns : r * columns + columns]
        if add:
            for j in range(columns):
                to[j] += source[j]
        else:
            for j in range(columns):
                to[j] = source[j]


RECTANGLES, ROUNDED = Kernel(rectangles_of_bfloat16), Kernel(rounded)


def floats(m: int, n: int, k: int, workers: int) -> int:
    """Of scratch, in which a product on so many threads packs; and sums, where it goes along k in several steps."""
    across, down = division_of(m, n, workers, BLOCK, BLOCK)
    packed = across * down * (room(-(-m // down) + BLOCK, -(-n // across) + BLOCK, min(k, MOST_DEEP)) // 4 + LINE)
    return packed + (m * n if k > MOST_DEEP else 0)


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
) -> list[Native]:
    """c = a @ b + bias, or c += a @ b: a and b are bfloat16, or float32 that is rounded; so is c."""
    (m, n), k = c.shape, a.shape[0 if turn_a else 1]
    if k <= MOST_DEEP:
        return [_step(c, a, b, turn_a, turn_b, add, workers, scratch, bias)]
    sums = scratch[-m * n :].reshape(m, n) if is_narrow(c) else c
    runs = []
    for at in range(0, k, MOST_DEEP):
        part_a = a[at : at + MOST_DEEP] if turn_a else a[:, at : at + MOST_DEEP]
        part_b = b[:, at : at + MOST_DEEP] if turn_b else b[at : at + MOST_DEEP]
        adds = at > 0 or (add and sums is c)
        shift = None if at else bias
        runs.append(_step(sums, part_a, part_b, turn_a, turn_b, adds, workers, scratch, shift))
    if sums is c:
        return runs
    flat, row = apart(c)
    return [*runs, ROUNDED.bind(c.size, flat, row, sums.reshape(-1), m, n, add)]


def _step(
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
    (m, n), k = c.shape, a.shape[0 if turn_a else 1]
    across, down = division_of(m, n, workers, BLOCK, BLOCK)
    high, wide = at_a_time(-(-m // down) + BLOCK, k), at_a_time(-(-n // across) + BLOCK, k)
    each = room(-(-m // down) + BLOCK, -(-n // across) + BLOCK, k) // 4 + LINE
    rooms = scratch[: across * down * each].reshape(across * down, each)
    (c, c_row), (a, a_row), (b, b_row) = (apart(matrix) for matrix in (c, a, b))
    kind = (NARROW if is_narrow(c) else 0) | (ADD if add else 0)
    of_a, of_b = (a_row, int(not turn_a), int(not is_narrow(a))), (b_row, int(turn_b), int(not is_narrow(b)))
    function = rectangle().ctypes
    a, b, c = (matrix.view(np.uint8) for matrix in (a, b, c))  # one type for all of them
    shift = None if bias is None else bias.view(np.uint8)
    if across * down > 1:
        given = (c, c_row, kind, a, *of_a, b, *of_b, shift, rooms, high, wide)
        return RECTANGLES.bind(THREADED, across, down, m, n, k, *given)
    integer, address = ctypes.c_int64, ctypes.c_uint64
    return partial(
        function, integer(m), integer(n), integer(k), address(a.ctypes.data), *map(integer, of_a),
        address(b.ctypes.data), *map(integer, of_b), ctypes.c_float(1),
        address(0 if shift is None else shift.ctypes.data), address(c.ctypes.data), integer(c_row), integer(kind),
        address(rooms.ctypes.data), integer(high), integer(wide),
    )  # fmt: skip
