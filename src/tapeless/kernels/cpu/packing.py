"""Packing of the factors of the float32 GEMM: into panels as wide as a tile (of b), or as high as one (of a), with a
row for each number along k. A factor that is bfloat16 is upcast on its way, which is exact.

`across` and `along`: elements of memory from one row of a (or column of b) to the next, and from one k to the next.
"""

from __future__ import annotations

import platform

from numba import intp, uintp

from tapeless.kernels.cpu.microkernels_float32 import (
    copy_vectors,
    load_bfloat16,
    load_float,
    prefetch_line,
    store_float,
    tiles_for,
    transpose_block,
)
from tapeless.kernels.cpu.numba_internals import config
from tapeless.kernels.cpu.sizes import LINE
from tapeless.kernels.cpu.vector import inlined

TILES = tiles_for(config.CPU_FEATURES, platform.machine())
LANES, ROWS, VECTORS = TILES.lanes, TILES.rows, TILES.vectors
WIDTH, PAIR = LANES * VECTORS, 4 if ROWS % 4 == 0 else 2
PAIRS = ROWS // PAIR
FLOAT_BYTES, BFLOAT16_BYTES = 4, 2  # bytes of a factor's numbers
NEAR, APART = 128, 144  # numbers of a row that are upcast at a time, and floats between rows: no power of two
UPCAST_FLOATS = max(ROWS, WIDTH) * APART


@inlined
def _transpose_panel(width, to, source, across, count, depth):
    """Whole vectors along k of a panel (depth width) from rows of memory that run along k; returns how far k came."""
    k = 0
    while k + LANES <= depth:
        place, begin = to + uintp(k * width * FLOAT_BYTES), source + uintp(k * FLOAT_BYTES)
        transpose_block(LANES, width, place, begin, intp(across), intp(count - 1))
        k += LANES
    return k


@inlined
def _pack_rest(k, width, to, source, across, along, count, depth):
    """The rest of a panel (depth width), from k on, number by number."""
    while k < depth:
        for i in range(count):
            store_float(to, intp(k * width + i), load_float(source, intp(i * across + k * along)))
        k += 1


@inlined
def pack_b(to, source, across, along, count, depth):
    """Pack b (depth count) into a panel (depth WIDTH). Columns behind `count` hold anything."""
    k = 0
    if across == 1 and count == WIDTH:
        while k < depth:
            copy_vectors(LANES, VECTORS, to + uintp(k * WIDTH * FLOAT_BYTES), source + uintp(k * along * FLOAT_BYTES))
            k += 1
    elif along == 1:
        k = _transpose_panel(WIDTH, to, source, across, count, depth)
    _pack_rest(k, WIDTH, to, source, across, along, count, depth)


@inlined
def pack_a(to, source, across, along, count, high, depth):
    """Pack a (count depth) into a panel (depth high)."""
    k = 0
    if high == ROWS and across == 1 and count == ROWS:
        while k < depth:
            copy_vectors(PAIR, PAIRS, to + uintp(k * ROWS * FLOAT_BYTES), source + uintp(k * along * FLOAT_BYTES))
            k += 1
    elif high == ROWS and along == 1:
        k = _transpose_panel(ROWS, to, source, across, count, depth)
    _pack_rest(k, high, to, source, across, along, count, depth)


@inlined
def _upcast(to, step, source, row, rows, length):
    """Upcast rows of `length` bfloat16 numbers, which lie `row` apart, to floats, which lie `step` apart."""
    for i in range(rows):
        place, begin = to + uintp(i * step * FLOAT_BYTES), source + uintp(i * row * BFLOAT16_BYTES)
        for j in range(length):
            store_float(place, intp(j), load_bfloat16(begin, intp(j)))


@inlined
def pack_bfloat16_b(to, source, across, along, count, depth, near):
    """As `pack_b`, of bfloat16: directly, or by way of some rows (`near`) that stay in the first cache."""
    if across == 1:
        _upcast(to, WIDTH, source, along, depth, count)
        return
    for k in range(0, depth, NEAR):
        part = min(NEAR, depth - k)
        _upcast(near, APART, source + uintp(k * BFLOAT16_BYTES), across, count, part)
        pack_b(to + uintp(k * WIDTH * FLOAT_BYTES), near, intp(APART), intp(1), count, part)


@inlined
def pack_bfloat16_a(to, source, across, along, count, high, depth, near):
    """As `pack_a`, of bfloat16."""
    if across == 1:
        _upcast(to, high, source, along, depth, count)
        return
    for k in range(0, depth, NEAR):
        part = min(NEAR, depth - k)
        _upcast(near, APART, source + uintp(k * BFLOAT16_BYTES), across, count, part)
        pack_a(to + uintp(k * high * FLOAT_BYTES), near, intp(APART), intp(1), count, high, part)


@inlined
def prefetch_part(place, across, along, size, count, depth, part, parts):
    """Prefetch part number `part` of the block (count depth) that is packed next, in the order of memory."""
    if along == 1:
        lines, apart, length = count, across, depth
    else:
        lines, apart, length = depth, along, count
    for line in range(lines * part // parts, lines * (part + 1) // parts):
        for byte in range(0, length * size, LINE):
            prefetch_line(place + uintp(line * apart * size + byte))
