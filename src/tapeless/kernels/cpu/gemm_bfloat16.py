"""The built-in GEMM in bfloat16, summed in float32, stored as float32 or rounded once.

It divides c among threads and packs as `gemm_float32.py` does. If k is deeper than `DEEP`, the sums of a block wait in
float32 until the next part of k continues them, so that each is rounded once. Their order is given by k alone.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba import float32, intp, prange, uintp
from numpy.typing import NDArray

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.dispatch import A_BFLOAT16, B_BFLOAT16, TRANSPOSED, Gemm
from tapeless.kernels.cpu.functions import CFunction, calling
from tapeless.kernels.cpu.gemm_float32 import FAR, RECTANGLE, SGEMM
from tapeless.kernels.cpu.gemm_plan import (
    blocks_and_panels,
    factor_a,
    factor_b,
    plans,
    result,
    sizes,
    stack_plan,
)
from tapeless.kernels.cpu.microkernels_bfloat16 import (
    AT_ONCE,
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
from tapeless.kernels.cpu.microkernels_float32 import features_of, prefetch_tile, stack_floats
from tapeless.kernels.cpu.numba_internals import config
from tapeless.kernels.cpu.sizes import (
    BLOCK,
    BYTES,
    DEEP,
    DEPTH,
    LINE,
    PACKED_A,
    PACKED_B,
    SIDE,
    at_a_time,
    bfloat16_floats,
    panel_bytes,
    rectangle_sizes,
)
from tapeless.kernels.cpu.vector import inlined

Array = NDArray[Any]

FEATURES = features_of(config.CPU_FEATURES)
HAS_BFLOAT16 = "avx512bf16" in FEATURES  # which every processor has that has AMX's
AMX = HAS_BFLOAT16 and "amx-bf16" in FEATURES and amx_permitted()
FLOATS = BLOCK * BLOCK
# Where all of b's panels stay in the second cache, c is gone through by rows, as it lies in memory; else by columns.
NEAR = 1 << 20
SMALL_PANELS, SMALL_DEEP = 3 << 14, 512  # of the small GEMM: floats of the caller's stack; along k at a time

SYMBOL = "tapeless_rectangle_bfloat16"
_rectangle = calling(SYMBOL, RECTANGLE)


@inlined
def _word(source, row, inner, floats, i, k, depth):
    """Two bfloat16 numbers of row i of a, or column i of b, from k on, in one word; 0 beyond the end of k."""
    if inner:
        low, high = i * row + k, i * row + k + 1
    else:
        low, high = k * row + i, (k + 1) * row + i
    bits = load_bits(intp(floats), source, intp(low))
    return bits | (load_bits(intp(floats), source, intp(high)) << 16) if k + 1 < depth else bits


@inlined
def _pack(to, source, row, inner, floats, count, depth, of_a):
    """Pack `count` rows of a (count depth), or columns of b (depth count), into panels of 16 (words 16).

    inner: k is the inner axis in memory; floats: the numbers are float32 and are rounded. A panel's missing rows hold
    anything, and no sum of theirs is stored. Behind the end of k there are zeros, because anything else may be NaN. The
    order is that of memory: panel by panel if k is the inner axis, else all panels a tile's depth at a time."""
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
    """Pack one tile from rows of memory that run along k, `at` being its first k."""
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
    """Pack one tile from rows of memory that run across k."""
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
    """Pack one tile at an edge, word by word."""
    for i in range(SIDE):
        for word in range(SIDE):
            k = at + 2 * word
            bits = _word(source, row, inner, floats, i, k, depth) if i < count and k < depth else 0
            store_word(place, intp(i * SIDE + word if of_a else word * SIDE + i), intp(bits))


@inlined
def _block(k, upper, lower, left, right, to, first):
    """to (32 32) = (upper; lower) @ (left, right), four packed panels of k tiles, or += if this is not the `first`."""
    if AMX:
        amx_tiles(k, upper, lower, left, right, to, first)
    else:
        for half in range(0, SIDE, AT_ONCE):
            avx512_half_tile(k, upper + uintp(half * SIDE * 4), left, right, to + uintp(half * BLOCK * 4), first)
            below = to + uintp((SIDE + half) * BLOCK * 4)
            avx512_half_tile(k, lower + uintp(half * SIDE * 4), left, right, below, first)


@inlined
def _prefetch(place, row, rows, size):
    """Prefetch the memory of a block that is as high as the others: a row is one line, or two in float32."""
    if rows == BLOCK and size == 2:
        prefetch_tile(BLOCK, 1, place, intp(row * 2))
    elif rows == BLOCK:
        prefetch_tile(BLOCK, 2, place, intp(row * 4))


@inlined
def _store(block, place, row, rows, columns, size, add, alpha, bias):
    """c (rows columns) = alpha · block + bias (+ c), rounded if an element of c has 2 bytes."""
    rows, columns, apart = intp(rows), intp(columns), intp(row * size)
    if size == 2 and add:
        store_rows(1, 1, block, rows, columns, alpha, bias, place, apart)
    elif size == 2:
        store_rows(1, 0, block, rows, columns, alpha, bias, place, apart)
    elif add:
        store_rows(0, 1, block, rows, columns, alpha, bias, place, apart)
    else:
        store_rows(0, 0, block, rows, columns, alpha, bias, place, apart)


def rectangle_of_bfloat16(plan, alpha):
    """The rectangle of c (m n) of a plan: c = alpha · op(a) @ op(b) + bias (+ c), each of float32 or bfloat16."""
    if AMX:
        amx_begin()
    m, n, k, add = sizes(plan)
    a, step_a, along_a, size_a = factor_a(plan)
    b, along_b, step_b, size_b = factor_b(plan)
    c, c_row, size, bias = result(plan)
    _, high, wide, panels, sums = blocks_and_panels(plan)
    # Whether the numbers of a row of memory follow each other along k.
    a_inner, b_inner = along_a == 1, along_b == 1
    a_row, b_row = step_a if a_inner else along_a, step_b if b_inner else along_b
    block_alone, far = stack_floats(FLOATS), m * n >= FAR
    panels = panels + uintp(-panels & uintp(LINE - 1))  # tiles whose rows lie across two lines load far more slowly
    for left in range(0, n, wide):
        columns = min(wide, n - left)
        for begin in range(0, k, DEEP):
            depth = min(DEEP, k - begin)
            tiles = -(-depth // DEPTH)
            panel = tiles * BYTES
            source = b + uintp((left * step_b + begin * along_b) * size_b)
            _pack(panels, source, b_row, b_inner, size_b == 4, columns, depth, False)
            packed_a = panels + uintp(-(-columns // BLOCK) * 2 * panel)
            for top in range(0, m, high):
                rows = min(high, m - top)
                source = a + uintp((top * step_a + begin * along_a) * size_a)
                _pack(packed_a, source, a_row, a_inner, size_a == 4, rows, depth, True)
                downs, acrosses = -(-rows // BLOCK), -(-columns // BLOCK)
                by_rows = 2 * acrosses * panel <= NEAR
                for number in range(downs * acrosses):
                    down = (number // acrosses if by_rows else number % downs) * BLOCK
                    across = (number % acrosses if by_rows else number // downs) * BLOCK
                    upper, beside = packed_a + uintp(down // SIDE * panel), panels + uintp(across // SIDE * panel)
                    block = sums + uintp(((top + down) * wide + across * BLOCK) * 4) if k > DEEP else block_alone
                    first = intp(begin == 0)
                    place = c + uintp(((top + down) * c_row + left + across) * size)
                    if far and begin + depth == k:
                        _prefetch(place, c_row, min(BLOCK, rows - down), size)
                    _block(intp(tiles), upper, upper + uintp(panel), beside, beside + uintp(panel), block, first)
                    if begin + depth == k:
                        high_here, wide_here = min(BLOCK, rows - down), min(BLOCK, columns - across)
                        shift = bias + uintp((left + across) * 2) if bias else bias
                        _store(block, place, c_row, high_here, wide_here, size, add, alpha, shift)
    if AMX:
        amx_end()


def _named_by_instructions(original: Any) -> FunctionType:
    """On disk there is one for either kind of instructions: a process that may not use AMX must not be handed what
    another one that may has compiled."""
    clone = FunctionType(original.__code__, original.__globals__, original.__name__)
    clone.__qualname__, clone.__module__ = f"{original.__name__}_{'amx' if AMX else 'avx512'}", original.__module__
    return clone


RECTANGLE_OF_BFLOAT16 = CFunction(_named_by_instructions(rectangle_of_bfloat16), RECTANGLE, SYMBOL)


def small_gemm_bfloat16(order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c (m n) = alpha · op(a) (m k) @ op(b) (k n) in float32, plus c if beta is 1, packed on the caller's stack. Any
    thread calls it as it would a BLAS's, on small matrices; `order` says their types."""
    panels, none = stack_floats(SMALL_PANELS), intp(0)
    a_rows, a_columns = (1, a_row) if transpose_a == TRANSPOSED else (a_row, 1)
    b_rows, b_columns = (1, b_row) if transpose_b == TRANSPOSED else (b_row, 1)
    a_size, b_size = 2 if order & A_BFLOAT16 else 4, 2 if order & B_BFLOAT16 else 4
    for begin in range(0, k, SMALL_DEEP):
        depth, add = min(SMALL_DEEP, k - begin), intp(1 if begin > 0 or beta != 0 else 0)
        most = intp((SMALL_PANELS * 4 - LINE) // (-(-depth // DEPTH) * BYTES * 4) * BLOCK)
        of_a = (a + uintp(begin * a_columns * a_size), intp(a_rows), intp(a_columns), intp(a_size))
        of_b = (b + uintp(begin * b_rows * b_size), intp(b_rows), intp(b_columns), intp(b_size))
        of_c = (c, c_row, intp(4), none, none, none, none)
        plan = stack_plan((m, n, intp(depth), add, *of_a, *of_b, *of_c, panels, none, most, most, none))
        _rectangle(plan, alpha)


SMALL_GEMM = CFunction(small_gemm_bfloat16, SGEMM, calls=RECTANGLE_OF_BFLOAT16)


def rectangles_of_bfloat16(plans):
    """The rectangle of each plan (P FIELDS)."""
    for worker in prange(plans.shape[0]):
        _rectangle(uintp(plans[worker].ctypes.data), float32(1))


RECTANGLES = Kernel(rectangles_of_bfloat16)


def scratch_floats(m: int, n: int, k: int, workers: int) -> int:
    """Floats in which a GEMM on so many threads packs and, where k is deep, sums."""
    return bfloat16_floats(m, n, k, workers)


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
) -> Gemm:
    """Bind c (m n) = op(a) @ op(b) + bias, or c += op(a) @ op(b). a and b are bfloat16, or float32 that is rounded; so
    is c."""
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    grid, rows, columns = rectangle_sizes(m, n, workers)
    packed, sums = panel_bytes(rows, columns, k)
    panels = (scratch.ctypes.data + -scratch.ctypes.data % LINE, packed + sums, packed)
    blocks = (0, at_a_time(rows, k, PACKED_A), at_a_time(columns, k, PACKED_B))
    made = plans(c, a, b, transpose_a, transpose_b, add, grid, (BLOCK, BLOCK), blocks, panels, bias)
    return Gemm.of(RECTANGLE_OF_BFLOAT16, RECTANGLES, made, c, k, (a, b, scratch, bias))
