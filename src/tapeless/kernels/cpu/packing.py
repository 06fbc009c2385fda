"""How the factors of our own float32 products come to lie as their tiles read them: in panels as wide as a tile, or as
high as one, a row for each number along k. A factor that is bfloat16 is widened on its way, which is exact."""

from __future__ import annotations

import platform

from numba import intp, uintp

from tapeless.kernels.cpu.microkernels_float32 import (
    LINE,
    copy_vectors,
    load_bfloat16,
    load_float,
    prefetch_line,
    store_float,
    tiles_for,
    transpose_block,
)
from tapeless.kernels.cpu.numba_internals import config
from tapeless.kernels.cpu.vector import inlined

TILES = tiles_for(config.CPU_FEATURES, platform.machine())
LANES, ROWS, VECTORS = TILES.lanes, TILES.rows, TILES.vectors
WIDTH, PAIR = LANES * VECTORS, 4 if ROWS % 4 == 0 else 2
PAIRS = ROWS // PAIR
FLOAT, BFLOAT16_BYTES = 4, 2  # bytes of a factor's numbers
NEAR, APART = 128, 144  # numbers of a row that are widened at a time, and floats between rows: no power of two
WIDENED = max(ROWS, WIDTH) * APART


@inlined
def pack_b(to, source, across, along, count, depth):
    """`depth` rows of a tile's width, of which `count` numbers are there; the others hold anything."""
    k = 0
    if across == 1 and count == WIDTH:
        while k < depth:
            copy_vectors(LANES, VECTORS, to + uintp(k * WIDTH * FLOAT), source + uintp(k * along * FLOAT))
            k += 1
    elif along == 1:
        while k + LANES <= depth:
            transpose_block(
                LANES, WIDTH, to + uintp(k * WIDTH * FLOAT), source + uintp(k * FLOAT), intp(across), intp(count - 1)
            )
            k += LANES
    while k < depth:
        for i in range(count):
            store_float(to, intp(k * WIDTH + i), load_float(source, intp(i * across + k * along)))
        k += 1


@inlined
def pack_a(to, source, across, along, count, high, depth):
    """`depth` rows of `high` numbers, of which `count` are there."""
    k = 0
    if high == ROWS and across == 1 and count == ROWS:
        while k < depth:
            copy_vectors(PAIR, PAIRS, to + uintp(k * ROWS * FLOAT), source + uintp(k * along * FLOAT))
            k += 1
    elif high == ROWS and along == 1:
        while k + LANES <= depth:
            transpose_block(
                LANES, ROWS, to + uintp(k * ROWS * FLOAT), source + uintp(k * FLOAT), intp(across), intp(count - 1)
            )
            k += LANES
    while k < depth:
        for i in range(count):
            store_float(to, intp(k * high + i), load_float(source, intp(i * across + k * along)))
        k += 1


@inlined
def _widen(to, step, source, row, rows, length):
    """Rows of so many bfloat16 numbers, which lie `row` apart, as floats, which lie `step` apart."""
    for i in range(rows):
        place, begin = to + uintp(i * step * FLOAT), source + uintp(i * row * BFLOAT16_BYTES)
        for j in range(length):
            store_float(place, intp(j), load_bfloat16(begin, intp(j)))


@inlined
def pack_bfloat16_b(to, source, across, along, count, depth, near):
    """As `pack_b`, of bfloat16: the rows that it makes at once, or by way of some that stay in the first cache."""
    if across == 1:
        _widen(to, WIDTH, source, along, depth, count)
        return
    for k in range(0, depth, NEAR):
        part = min(NEAR, depth - k)
        _widen(near, APART, source + uintp(k * BFLOAT16_BYTES), across, count, part)
        pack_b(to + uintp(k * WIDTH * FLOAT), near, intp(APART), intp(1), count, part)


@inlined
def pack_bfloat16_a(to, source, across, along, count, high, depth, near):
    """As `pack_a`."""
    if across == 1:
        _widen(to, high, source, along, depth, count)
        return
    for k in range(0, depth, NEAR):
        part = min(NEAR, depth - k)
        _widen(near, APART, source + uintp(k * BFLOAT16_BYTES), across, count, part)
        pack_a(to + uintp(k * high * FLOAT), near, intp(APART), intp(1), count, high, part)


@inlined
def prefetch_part(place, across, along, size, count, depth, part, parts):
    """Of a block that is packed next, as it lies in memory, one of so many parts."""
    if along == 1:
        lines, apart, length = count, across, depth
    else:
        lines, apart, length = depth, along, count
    for line in range(lines * part // parts, lines * (part + 1) // parts):
        for byte in range(0, length * size, LINE):
            prefetch_line(place + uintp(line * apart * size + byte))
