"""The built-in GEMM in float32: no BLAS is needed.

A rectangle of c is computed in blocks of `DEPTH` along k. A block of b is packed into panels as wide as a tile, then
blocks of a, some rows at a time, into panels as high as one. Each tile reads two panels from end to end; meanwhile the
memory that is packed next is prefetched. A factor that is bfloat16 is upcast, which is exact, as it is packed: the sums
are those of the same numbers in float32. The order in which an element is summed is given by k alone: it is the same in
any rectangle, on any number of threads, in a matrix of any other size.

op(a) is a, or its transpose if a is stored transposed.
"""

from __future__ import annotations

from typing import Any

from numba import float32, intp, prange, types, uintp
from numpy.typing import NDArray

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.dispatch import TRANSPOSED, Gemm
from tapeless.kernels.cpu.functions import CFunction, calling
from tapeless.kernels.cpu.gemm_plan import (
    blocks_and_panels,
    factor_a,
    factor_b,
    plans,
    relu_and_mask,
    result,
    sizes,
    stack_plan,
)
from tapeless.kernels.cpu.microkernels_float32 import (
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
    FLOAT_BYTES,
    LANES,
    ROWS,
    UPCAST_FLOATS,
    VECTORS,
    WIDTH,
    pack_a,
    pack_b,
    pack_bfloat16_a,
    pack_bfloat16_b,
    prefetch_part,
)
from tapeless.kernels.cpu.sizes import BLOCK_DEPTH, BLOCK_HIGH, BLOCK_WIDE, LINE, SLACK, float32_floats, thread_grid
from tapeless.kernels.cpu.vector import fused, inlined

Array = NDArray[Any]

SMALL_DEPTH, SMALL_HIGH, SMALL_WIDE = 256, 72, 128  # of the small GEMM, whose panels lie on the caller's stack
TINY, TINY_DEPTH = 32, 128  # rows and columns, and numbers along k, of a GEMM that is not packed
FAR = 1 << 17  # elements of a matrix, from which it is not in a near cache and its parts are prefetched

HALF, QUARTER, NARROW = ROWS // 2, ROWS // 4, VECTORS // 2  # smaller tiles, for the edges
FLOATS = ROWS * WIDTH
LINES = -(-WIDTH * 4 // LINE)
STRIP_ROWS, TINY_PANEL = 4, TINY_DEPTH * LANES
SMALL_PANELS = SMALL_DEPTH * (SMALL_HIGH + SMALL_WIDE) + 2 * SLACK

RECTANGLE = types.void(uintp, float32)  # the address of a plan, alpha
# CBLAS's sgemm: order, transpose a and b, m, n, k, alpha, a and its row step, b and its, beta, c and its
SGEMM = types.void(intp, intp, intp, intp, intp, intp, float32, uintp, intp, uintp, intp, float32, uintp, intp)
SYMBOL = "tapeless_rectangle"
_rectangle = calling(SYMBOL, RECTANGLE)


@inlined
def _tile_height(count):
    """The height of the tile for the last `count` rows: at least half of the smaller ones is used."""
    if count > HALF:
        return ROWS
    if count > QUARTER:
        return HALF
    return QUARTER if count > 1 else 1


@inlined
def _tile(high, wide, depth, a, b, c, c_row, alpha, add):
    """c (high wide) = alpha · a @ b (+ c), of packed panels a (depth high) and b (depth WIDTH)."""
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


def rectangle_of_tiles(plan, alpha):
    """The rectangle of c (m n) of a plan: c = alpha · op(a) @ op(b) (+ c), then + bias, then 0 where mask ≤ 0."""
    m, n, k, add = sizes(plan)
    a, a_row, a_col, a_size = factor_a(plan)
    b, b_row, b_col, b_size = factor_b(plan)
    c, c_row, _, bias = result(plan)
    relu, mask, mask_row = relu_and_mask(plan)
    most_deep, most_high, most_wide, panels, _ = blocks_and_panels(plan)
    edge, near = stack_floats(FLOATS), stack_floats(UPCAST_FLOATS)
    far_a, far_b, far_c = m * k >= FAR, n * k >= FAR, m * n >= FAR
    for first in range(0, n, most_wide):
        wide = min(most_wide, n - first)
        for begin in range(0, k, most_deep):
            depth, also, end = min(most_deep, k - begin), intp(1 if begin > 0 else add), min(k, begin + most_deep)
            for at in range(0, wide, WIDTH):
                source, count = b + uintp((begin * b_row + (first + at) * b_col) * b_size), min(WIDTH, wide - at)
                if b_size == FLOAT_BYTES:
                    pack_b(panels + uintp(at * depth * 4), source, b_col, b_row, count, depth)
                else:
                    pack_bfloat16_b(panels + uintp(at * depth * 4), source, b_col, b_row, count, depth, near)
            packed_a = panels + uintp((-(-wide // WIDTH) * WIDTH * depth + SLACK) * 4)
            below_b, deep_b = b + uintp((end * b_row + first * b_col) * b_size), min(most_deep, k - end)
            for top in range(0, m, most_high):
                high = min(most_high, m - top)
                for at in range(0, high, ROWS):
                    source, count = a + uintp(((top + at) * a_row + begin * a_col) * a_size), min(ROWS, high - at)
                    to, tall = packed_a + uintp(at * depth * 4), _tile_height(count)
                    if a_size == FLOAT_BYTES:
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
                        panel_a, panel_b = packed_a + uintp(at * depth * 4), panels + uintp(left * depth * 4)
                        place = c + uintp(((top + at) * c_row + first + left) * 4)
                        tall = _tile_height(count)
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
    """Copy the part of a tile (count columns) that lies in c from where it was computed: at the edge of a rectangle."""
    for i in range(count):
        for j in range(columns):
            made, at = load_float(edge, intp(i * WIDTH + j)), intp(i * c_row + j)
            store_float(place, at, fused(alpha, made, load_float(place, at)) if add else alpha * made)


@inlined
def _add_bias(place, c_row, count, columns, bias):
    """Add a bias to a tile (count columns) whose sums are complete."""
    for i in range(count):
        row = place + uintp(i * c_row * 4)
        if columns == WIDTH:
            add_vectors(LANES, VECTORS, row, bias)
        else:
            for j in range(columns):
                store_float(row, intp(j), load_float(row, intp(j)) + load_float(bias, intp(j)))


@inlined
def _rectify(panel, count):
    """ReLU in place, of a packed panel of `count` floats, which is in the first cache."""
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
    """Write 0 into a tile (count columns) whose sums are complete, where the mask is ≤ 0."""
    for i in range(count):
        row, above = place + uintp(i * c_row * 4), mask + uintp(i * mask_row * 4)
        if columns == WIDTH:
            keep_positive(LANES, VECTORS, row, above)
        else:
            for j in range(columns):
                store_float(row, intp(j), float32(0) if load_float(above, intp(j)) <= 0 else load_float(row, intp(j)))


RECTANGLE_OF_TILES = CFunction(rectangle_of_tiles, RECTANGLE, SYMBOL)


def small_gemm(order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c (m n) = alpha · op(a) (m k) @ op(b) (k n), plus c if beta is 1, packed on the caller's stack. Any thread calls
    it as it would a BLAS's, on small matrices."""
    panels, none = stack_floats(SMALL_PANELS), intp(0)
    a_rows, a_columns = (1, a_row) if transpose_a == TRANSPOSED else (a_row, 1)
    b_rows, b_columns = (1, b_row) if transpose_b == TRANSPOSED else (b_row, 1)
    add, size = intp(1 if beta != 0 else 0), intp(FLOAT_BYTES)
    of_a, of_b = (a, intp(a_rows), intp(a_columns), size), (b, intp(b_rows), intp(b_columns), size)
    blocks = (intp(SMALL_DEPTH), intp(SMALL_HIGH), intp(SMALL_WIDE))
    fused_none = (none, none, none, none)
    plan = stack_plan((m, n, k, add, *of_a, *of_b, c, c_row, size, *fused_none, panels, *blocks, none))
    _rectangle(plan, alpha)


def is_tiny(rows: int, keys: int, width: int) -> bool:
    """Whether attention's GEMMs are so small that packing, and a BLAS's way to its kernel, cost more than the GEMM."""
    return rows <= TINY and keys <= TINY and width <= TINY_DEPTH and width % LANES == 0


def tiny_gemm(order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """c (m n) = alpha · op(a) (m k) @ op(b) (k n), plus c if beta is 1, from where the matrices lie. If b is
    transposed, k is a multiple of a vector's length, and c's rows have space for whole vectors, also behind their end;
    else n is such a multiple."""
    panel = stack_floats(TINY_PANEL)
    a_rows, a_columns = (1, a_row) if transpose_a == TRANSPOSED else (a_row, 1)
    add = intp(1 if beta != 0 else 0)
    for j in range(0, n, LANES):
        strip, step = b + uintp(j * 4), intp(b_row)
        if transpose_b == TRANSPOSED:
            strip, step, last = panel, intp(LANES), intp(min(LANES, n - j) - 1)
            for at in range(0, k, LANES):
                source = b + uintp((j * b_row + at) * 4)
                transpose_block(LANES, LANES, panel + uintp(at * LANES * 4), source, intp(b_row), last)
        i = 0
        while i + STRIP_ROWS <= m:
            of_a, of_c = a + uintp(i * a_rows * 4), c + uintp((i * c_row + j) * 4)
            gemm_strip(LANES, STRIP_ROWS, k, of_a, intp(a_rows), intp(a_columns), strip, step, of_c, c_row, alpha, add)
            i += STRIP_ROWS
        while i < m:
            of_a, of_c = a + uintp(i * a_rows * 4), c + uintp((i * c_row + j) * 4)
            gemm_strip(LANES, 1, k, of_a, intp(a_rows), intp(a_columns), strip, step, of_c, c_row, alpha, add)
            i += 1


# GEMMs that are called as a BLAS's is.
SMALL_GEMM, TINY_GEMM = CFunction(small_gemm, SGEMM, calls=RECTANGLE_OF_TILES), CFunction(tiny_gemm, SGEMM)


def rectangles(plans):
    """The rectangle of each plan (P FIELDS)."""
    for worker in prange(plans.shape[0]):
        _rectangle(uintp(plans[worker].ctypes.data), float32(1))


RECTANGLES = Kernel(rectangles)


def scratch_floats(m: int, n: int, k: int, workers: int) -> int:
    """Floats in which a GEMM on so many threads packs here."""
    return float32_floats(m, n, k, workers, ROWS, WIDTH)


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
) -> Gemm:
    """Bind c (m n) = op(a) @ op(b) + bias, or c += op(a) @ op(b). a or b may be bfloat16. `relu`: max(a, 0) is
    multiplied; where the `mask` is ≤ 0, c is 0."""
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    grid = thread_grid(m, n, workers, ROWS, WIDTH)
    step = 4 * scratch_floats(m, n, k, workers) // (grid[0] * grid[1])
    panels, blocks = (scratch.ctypes.data, step, 0), (BLOCK_DEPTH, BLOCK_HIGH, BLOCK_WIDE)
    made = plans(c, a, b, transpose_a, transpose_b, add, grid, (ROWS, WIDTH), blocks, panels, bias, relu, mask)
    return Gemm.of(RECTANGLE_OF_TILES, RECTANGLES, made, c, k, (a, b, scratch, bias, mask))
