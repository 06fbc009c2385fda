"""Products of our own, in float32: no BLAS is needed.

c is divided into rectangles, one for every thread, which share nothing but what they read. A rectangle is gone through
in blocks of `DEPTH` along k: b's part is packed into panels as wide as a tile, then a's, some rows at a time, into
panels as high as one, and every tile reads two panels from end to end; meanwhile what is packed next comes from memory.
A factor that is bfloat16 is widened, which is exact, a panel at a time on its way there: the sums are those of the same
numbers in float32. Of an element the order of the sum is given by k alone: it is the same in any rectangle, on any
number of threads, in a matrix of any other size.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import float32, intp, prange, types, uintp
from numpy.typing import NDArray

from tapeless.kernels.cpu.bfloat16 import is_bfloat16
from tapeless.kernels.cpu.compile import Kernel, strided
from tapeless.kernels.cpu.functions import c_function
from tapeless.kernels.cpu.microkernels_float32 import (
    LINE,
    add_vectors,
    gemm_strip,
    gemm_tile,
    keep_positive,
    load_float,
    prefetch_tile,
    stack_floats,
    store_float,
    transpose_block,
)
from tapeless.kernels.cpu.packing import (
    BFLOAT16_BYTES,
    FLOAT,
    LANES,
    ROWS,
    VECTORS,
    WIDENED,
    WIDTH,
    pack_a,
    pack_b,
    pack_bfloat16_a,
    pack_bfloat16_b,
    prefetch_part,
)
from tapeless.kernels.cpu.vector import fused, inlined
from tapeless.kernels.native import Native

Array = NDArray[Any]

# Along k, rows of a and columns of b that are packed at a time: a panel of b and all of a's for the second cache, b's
# for the third. Deeper blocks go less often over c.
DEPTH, HIGH, WIDE = 512, 96, 2048
LITTLE_DEPTH, LITTLE_HIGH, LITTLE_WIDE = 256, 72, 128  # where a thread's own stack has to hold them
TINY, TINY_DEPTH = 32, 128  # rows and columns, and numbers along k, of products that are not packed
FAR = 1 << 17  # numbers of a matrix, from which it is not in a near cache and its parts are asked for beforehand
SLACK = 64  # floats behind what is packed: the last vector may reach beyond it
TRANSPOSED = 112  # as a BLAS says it

HALF, QUARTER, NARROW = ROWS // 2, ROWS // 4, VECTORS // 2  # smaller tiles, for what is left over
FLOATS = ROWS * WIDTH
LINES = -(-WIDTH * 4 // LINE)
AT_ONCE, TURNED = 4, TINY_DEPTH * LANES
LITTLE = LITTLE_DEPTH * (LITTLE_HIGH + LITTLE_WIDE) + 2 * SLACK

# m, n, k, alpha; of a and b: place, distance of rows and of columns, bytes of a number; add; c; room; bias; whether a
# is what ReLU leaves of it; the mask and the distance of its rows
RECTANGLE = types.void(
    intp,
    intp,
    intp,
    float32,
    uintp,
    intp,
    intp,
    intp,
    uintp,
    intp,
    intp,
    intp,
    intp,
    uintp,
    intp,
    uintp,
    intp,
    intp,
    intp,
    uintp,
    intp,
    uintp,
    intp,
)
SGEMM = types.void(intp, intp, intp, intp, intp, intp, float32, uintp, intp, uintp, intp, float32, uintp, intp)
SYMBOL = "tapeless_rectangle"
_rectangle = types.ExternalFunction(SYMBOL, RECTANGLE)


def panel_floats(m: int, n: int, k: int, high: int, wide: int) -> int:
    """Floats in which the panels of a product fit, of so many rows and columns at a time."""
    return min(k, DEPTH) * (_up(min(m, high), ROWS) + _up(min(n, wide), WIDTH)) + 2 * SLACK


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


@inlined
def _height(count):
    """Of the tile for the last rows: at least half of the smaller ones is used."""
    if count > HALF:
        return ROWS
    if count > QUARTER:
        return HALF
    return QUARTER if count > 1 else 1


@inlined
def _tile(high, wide, depth, a, b, c, c_row, alpha, add):
    if high == ROWS and wide <= NARROW * LANES:
        gemm_tile(LANES, ROWS, NARROW, WIDTH, depth, a, b, c, c_row, alpha, add)
    elif high == ROWS:
        gemm_tile(LANES, ROWS, VECTORS, WIDTH, depth, a, b, c, c_row, alpha, add)
    elif high == HALF:
        gemm_tile(LANES, HALF, VECTORS, WIDTH, depth, a, b, c, c_row, alpha, add)
    elif high == QUARTER:
        gemm_tile(LANES, QUARTER, VECTORS, WIDTH, depth, a, b, c, c_row, alpha, add)
    else:
        gemm_tile(LANES, 1, VECTORS, WIDTH, depth, a, b, c, c_row, alpha, add)


def rectangle_of_tiles(
    m,
    n,
    k,
    alpha,
    a,
    a_row,
    a_col,
    a_size,
    b,
    b_row,
    b_col,
    b_size,
    add,
    c,
    c_row,
    room,
    most_deep,
    most_high,
    most_wide,
    bias,
    relu,
    mask,
    mask_row,
):
    edge, near = stack_floats(FLOATS), stack_floats(WIDENED)
    far_a, far_b, far_c = m * k >= FAR, n * k >= FAR, m * n >= FAR
    for first in range(0, n, most_wide):
        wide = min(most_wide, n - first)
        for begin in range(0, k, most_deep):
            depth, also, end = min(most_deep, k - begin), intp(1 if begin > 0 else add), min(k, begin + most_deep)
            for at in range(0, wide, WIDTH):
                source, count = b + uintp((begin * b_row + (first + at) * b_col) * b_size), min(WIDTH, wide - at)
                if b_size == FLOAT:
                    pack_b(room + uintp(at * depth * 4), source, b_col, b_row, count, depth)
                else:
                    pack_bfloat16_b(room + uintp(at * depth * 4), source, b_col, b_row, count, depth, near)
            packed_a = room + uintp((-(-wide // WIDTH) * WIDTH * depth + SLACK) * 4)
            below_b, deep_b = b + uintp((end * b_row + first * b_col) * b_size), min(most_deep, k - end)
            for top in range(0, m, most_high):
                high = min(most_high, m - top)
                for at in range(0, high, ROWS):
                    source, count = a + uintp(((top + at) * a_row + begin * a_col) * a_size), min(ROWS, high - at)
                    to, tall = packed_a + uintp(at * depth * 4), _height(count)
                    if a_size == FLOAT:
                        pack_a(to, source, a_row, a_col, count, tall, depth)
                    else:
                        pack_bfloat16_a(to, source, a_row, a_col, count, tall, depth, near)
                    if relu:
                        _rectify(to, tall * depth)
                row, column = (top + high, begin) if top + high < m else (0, end)
                next_a, high_a = a + uintp((row * a_row + column * a_col) * a_size), min(most_high, m - row)
                tile, tiles, blocks = 0, -(-high // ROWS) * -(-wide // WIDTH), -(-m // most_high)
                for left in range(0, wide, WIDTH):
                    for at in range(0, high, ROWS):
                        if far_a:
                            deep_a = min(most_deep, k - column)
                            prefetch_part(next_a, a_row, a_col, a_size, high_a, deep_a, tile, tiles)
                        if far_b:
                            part = top // most_high * tiles + tile
                            prefetch_part(below_b, b_col, b_row, b_size, wide, deep_b, part, tiles * blocks)
                        tile += 1
                        count, columns = min(ROWS, high - at), min(WIDTH, wide - left)
                        panel_a, panel_b = packed_a + uintp(at * depth * 4), room + uintp(left * depth * 4)
                        place = c + uintp(((top + at) * c_row + first + left) * 4)
                        tall = _height(count)
                        fits = count == tall and (columns == WIDTH or (tall == ROWS and columns == NARROW * LANES))
                        to, apart, added = (place, c_row, also) if fits else (edge, intp(WIDTH), intp(0))
                        factor = alpha if fits else float32(1)
                        if far_c and fits:
                            prefetch_tile(ROWS, LINES, place, intp(c_row * 4))
                        _tile(tall, columns, depth, panel_a, panel_b, to, apart, factor, added)
                        if not fits:
                            _from_edge(place, c_row, edge, count, columns, alpha, also)
                        if bias and end == k:
                            _add_bias(place, c_row, count, columns, bias + uintp((first + left) * 4))
                        if mask and end == k:
                            above = mask + uintp(((top + at) * mask_row + first + left) * 4)
                            _pass_where_positive(place, c_row, above, mask_row, count, columns)


@inlined
def _from_edge(place, c_row, edge, count, columns, alpha, add):
    """What a tile that is not wholly in c has computed beside it."""
    for i in range(count):
        for j in range(columns):
            made, at = load_float(edge, intp(i * WIDTH + j)), intp(i * c_row + j)
            store_float(place, at, fused(alpha, made, load_float(place, at)) if add else alpha * made)


@inlined
def _add_bias(place, c_row, count, columns, bias):
    """To a tile whose sums are whole."""
    for i in range(count):
        row = place + uintp(i * c_row * 4)
        if columns == WIDTH:
            add_vectors(LANES, VECTORS, row, bias)
        else:
            for j in range(columns):
                store_float(row, intp(j), load_float(row, intp(j)) + load_float(bias, intp(j)))


@inlined
def _rectify(panel, count):
    """What ReLU leaves of a packed panel, which is in the first cache."""
    at = 0
    while at + LANES <= count:
        place = panel + uintp(at * 4)
        keep_positive(LANES, 1, place, place)
        at += LANES
    while at < count:
        number = load_float(panel, intp(at))
        store_float(panel, intp(at), float32(0) if number <= 0 else number)
        at += 1


@inlined
def _pass_where_positive(place, c_row, mask, mask_row, count, columns):
    """A tile whose sums are whole, where the mask is not ≤ 0; else 0."""
    for i in range(count):
        row, above = place + uintp(i * c_row * 4), mask + uintp(i * mask_row * 4)
        if columns == WIDTH:
            keep_positive(LANES, VECTORS, row, above)
        else:
            for j in range(columns):
                store_float(row, intp(j), float32(0) if load_float(above, intp(j)) <= 0 else load_float(row, intp(j)))


@cache
def rectangle() -> Any:
    """The one for this machine, under a name by which kernels find it."""
    function = c_function(RECTANGLE, rectangle_of_tiles)
    llvm.add_symbol(SYMBOL, function.address)
    return function


@cache
def small_gemm_function() -> Any:
    """A product that is called as a BLAS's is, by any thread, on matrices that are small."""
    rectangle()
    return c_function(SGEMM, small_gemm).ctypes


def gemm_address() -> int:
    return ctypes.cast(small_gemm_function(), ctypes.c_void_p).value or 0


def small_gemm(order, turned_a, turned_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """alpha · a @ b, to which c is added where beta is 1, on the stack of whoever calls."""
    room = stack_floats(LITTLE)
    a_rows, a_columns = (1, a_row) if turned_a == TRANSPOSED else (a_row, 1)
    b_rows, b_columns = (1, b_row) if turned_b == TRANSPOSED else (b_row, 1)
    add = intp(1 if beta != 0 else 0)
    _rectangle(
        m,
        n,
        k,
        alpha,
        a,
        intp(a_rows),
        intp(a_columns),
        intp(FLOAT),
        b,
        intp(b_rows),
        intp(b_columns),
        intp(FLOAT),
        add,
        c,
        c_row,
        room,
        intp(LITTLE_DEPTH),
        intp(LITTLE_HIGH),
        intp(LITTLE_WIDE),
        uintp(0),
        intp(0),
        uintp(0),
        intp(0),
    )


@cache
def tiny_gemm_function() -> Any:
    """A product that is called as a BLAS's is, and for which `is_tiny`."""
    return c_function(SGEMM, tiny_gemm).ctypes


def tiny_gemm_address() -> int:
    return ctypes.cast(tiny_gemm_function(), ctypes.c_void_p).value or 0


def is_tiny(rows: int, keys: int, width: int) -> bool:
    """Of attention's products: so small that packing, and a BLAS's way to its kernel, cost more than the product."""
    return rows <= TINY and keys <= TINY and width <= TINY_DEPTH and width % LANES == 0


def tiny_gemm(order, turned_a, turned_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c = alpha · a @ b (+ c) as `small_gemm`, from where the matrices lie. If b is transposed, k is a multiple of a
    vector's length, and c's rows have space for whole vectors, also behind their end; else n is such a multiple."""
    turned = stack_floats(TURNED)
    a_rows, a_columns = (1, a_row) if turned_a == TRANSPOSED else (a_row, 1)
    add = intp(1 if beta != 0 else 0)
    for j in range(0, n, LANES):
        beside, apart = b + uintp(j * 4), intp(b_row)
        if turned_b == TRANSPOSED:
            beside, apart = turned, intp(LANES)
            for at in range(0, k, LANES):
                source = b + uintp((j * b_row + at) * 4)
                transpose_block(
                    LANES, LANES, turned + uintp(at * LANES * 4), source, intp(b_row), intp(min(LANES, n - j) - 1)
                )
        i = 0
        while i + AT_ONCE <= m:
            of_a, of_c = a + uintp(i * a_rows * 4), c + uintp((i * c_row + j) * 4)
            gemm_strip(LANES, AT_ONCE, k, of_a, intp(a_rows), intp(a_columns), beside, apart, of_c, c_row, alpha, add)
            i += AT_ONCE
        while i < m:
            of_a, of_c = a + uintp(i * a_rows * 4), c + uintp((i * c_row + j) * 4)
            gemm_strip(LANES, 1, k, of_a, intp(a_rows), intp(a_columns), beside, apart, of_c, c_row, alpha, add)
            i += 1


def rectangles(
    across,
    down,
    m,
    n,
    k,
    c,
    c_row,
    a,
    a_row,
    a_col,
    a_size,
    b,
    b_row,
    b_col,
    b_size,
    add,
    rooms,
    bias,
    relu,
    mask,
    mask_row,
):
    """Whole tiles to everyone but the last, in each direction."""
    for worker in prange(across * down):
        i, j = worker // across, worker % across
        top, bottom = cut(m, ROWS, i, down), cut(m, ROWS, i + 1, down)
        left, right = cut(n, WIDTH, j, across), cut(n, WIDTH, j + 1, across)
        own_a = uintp(a.ctypes.data) + uintp(top * a_row * a_size)
        own_b = uintp(b.ctypes.data) + uintp(left * b_col * b_size)
        own_c = uintp(c.ctypes.data) + uintp((top * c_row + left) * 4)
        own_bias = uintp(0) if bias is None else uintp(bias.ctypes.data) + uintp(left * 4)
        own_mask = uintp(0) if mask is None else uintp(mask.ctypes.data) + uintp((top * mask_row + left) * 4)
        _rectangle(
            intp(bottom - top),
            intp(right - left),
            intp(k),
            float32(1),
            own_a,
            intp(a_row),
            intp(a_col),
            intp(a_size),
            own_b,
            intp(b_row),
            intp(b_col),
            intp(b_size),
            intp(add),
            own_c,
            intp(c_row),
            uintp(rooms[worker].ctypes.data),
            intp(DEPTH),
            intp(HIGH),
            intp(WIDE),
            own_bias,
            intp(relu),
            own_mask,
            intp(mask_row),
        )


@inlined
def cut(size, step, number, parts):
    """Where part `number` begins."""
    return min(size, (size + step - 1) // step * number // parts * step)


RECTANGLES = Kernel(rectangles)


def thread_grid(m: int, n: int, workers: int, high: int = ROWS, wide: int = WIDTH) -> tuple[int, int]:
    """Rectangles side by side and one below the other: as little as possible is packed more than once, and every one
    has a tile, which is so high and wide."""
    most_across, most_down = -(-n // wide), -(-m // high)
    ways = [(across, workers // across) for across in range(1, workers + 1) if workers % across == 0]
    ways = [(across, down) for across, down in ways if across <= most_across and down <= most_down]
    return min(ways, key=lambda way: way[0] * m + way[1] * n, default=(1, 1))


def scratch_floats(m: int, n: int, k: int, workers: int) -> int:
    """In which a product on so many threads packs."""
    across, down = thread_grid(m, n, workers)
    return across * down * panel_floats(-(-m // down) + ROWS, -(-n // across) + WIDTH, k, HIGH, WIDE)


def bound(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    add: bool,
    workers: int,
    scratch: Array,
    bias: Array | None = None,
    relu: bool = False,
    mask: Array | None = None,
) -> Native:
    """c = a @ b + bias, or c += a @ b, ready to be called. a or b may be bfloat16. `relu`: what ReLU leaves of a is
    multiplied; where the `mask` is ≤ 0, c is 0."""
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    across, down = thread_grid(m, n, workers)
    rooms = scratch[: scratch_floats(m, n, k, workers)].reshape(across * down, -1)
    (c, c_row), *factors = (strided(each) for each in (c, a, b))
    steps = [
        (1, step) if turned else (step, 1)
        for (_, step), turned in zip(factors, (transpose_a, transpose_b), strict=True)
    ]
    of_a, of_b = (
        (*step, BFLOAT16_BYTES if is_bfloat16(flat) else FLOAT) for (flat, _), step in zip(factors, steps, strict=True)
    )
    a, b = (flat.view(np.uint8) for flat, _ in factors)  # one type for all of them
    flat_mask, mask_row = strided(mask)
    function = rectangle().ctypes
    if across * down > 1:
        given = (c, c_row, a, *of_a, b, *of_b, int(add), rooms, bias, int(relu), flat_mask, mask_row)
        return RECTANGLES.bind(m * n, across, down, m, n, k, *given, threads=across * down)
    integer, address = ctypes.c_int64, ctypes.c_uint64
    return partial(
        function,
        integer(m),
        integer(n),
        integer(k),
        ctypes.c_float(1),
        address(a.ctypes.data),
        *map(integer, of_a),
        address(b.ctypes.data),
        *map(integer, of_b),
        integer(add),
        address(c.ctypes.data),
        integer(c_row),
        address(rooms.ctypes.data),
        integer(DEPTH),
        integer(HIGH),
        integer(WIDE),
        address(0 if bias is None else bias.ctypes.data),
        integer(relu),
        address(0 if mask is None else mask.ctypes.data),
        integer(mask_row),
    )
