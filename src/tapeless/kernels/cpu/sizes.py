"""How much memory kernels need, and how their work is divided: what a plan asks before anything is compiled. NumPy
suffices."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import dispatch
from tapeless.kernels.native import Scratch

LINE = 64  # bytes that memory comes in
# Of the float32 GEMM. Along k, rows of a and columns of b that are packed at a time: a panel of b and all of a's for
# the second cache, b's for the third. Deeper blocks go less often over c.
BLOCK_DEPTH, BLOCK_HIGH, BLOCK_WIDE = 512, 96, 2048
SLACK = 64  # floats behind the panels: the last vector may reach beyond them
TILES = ((12, 32), (6, 16), (4, 8))  # rows and columns of a tile, on any processor
# Of the bfloat16 GEMM.
SIDE = 16  # of a tile, in words
BYTES = SIDE * SIDE * 4
DEPTH = 2 * SIDE  # numbers along k in a tile
BLOCK = 2 * SIDE  # rows and columns that are computed at a time
DEEP = 1024  # along k at a time: the panels of a block of columns stay in the first cache, or nearly
# Bytes of a's panels that are packed at a time, which must stay in the second cache while b's pass by, and of b's.
PACKED_A, PACKED_B = 3 << 18, 2 << 20


def block_count(size: int, length: int) -> int:
    """How many blocks of a length hold so many; the last one may be shorter."""
    return (size + length - 1) // length


def worker_count(work: int, threaded_from: int, most: int) -> int:
    """How many threads share the work, at most so many: one alone where waking another costs more than it saves."""
    return max(1, min(most, dispatch.threads_for(work, threaded_from)))


def part_count(rows: int, fewest: int, most: int) -> int:
    """How many partial sums the rows are cut into: by their number alone, so that the order of adding does not depend
    on threads. Each has at least `fewest` rows, where there are as many."""
    return max(1, min(most, rows // fewest))


def thread_grid(m: int, n: int, workers: int, high: int, wide: int) -> tuple[int, int]:
    """(across, down): how many rectangles c (m n) is divided into. As little as possible is packed more than once, and
    each has a tile, which is so high and wide."""
    most_across, most_down = -(-n // wide), -(-m // high)
    ways = [(across, workers // across) for across in range(1, workers + 1) if workers % across == 0]
    ways = [(across, down) for across, down in ways if across <= most_across and down <= most_down]
    return min(ways, key=lambda way: way[0] * m + way[1] * n, default=(1, 1))


def float32_floats(m: int, n: int, k: int, workers: int, high: int, wide: int) -> int:
    """Floats in which a GEMM on so many threads packs, on a processor with such tiles."""
    across, down = thread_grid(m, n, workers, high, wide)
    rows, columns = min(-(-m // down) + high, BLOCK_HIGH), min(-(-n // across) + wide, BLOCK_WIDE)
    packed = min(k, BLOCK_DEPTH) * (-(-rows // high) * high + -(-columns // wide) * wide)
    return across * down * (packed + 2 * SLACK)


def gemm_scratch(call: Any, precision: Any, *sizes: tuple[int, int, int]) -> list[Scratch]:
    """Scratch for GEMMs with the call's weight, of these m, n and k, one after the other. The built-in GEMM packs into
    it, on any processor: a plan is the same on all of them. MKL has its own memory. It comes last of what a kernel asks
    for."""
    if not sizes or (precision.dtype(call["weight"].buffer.role) == "float32" and dispatch.gemm_library() == "mkl"):
        return []
    return [Scratch((max(_gemm_floats(precision.activation, *size) for size in sizes),))]


def _gemm_floats(activation: str, m: int, n: int, k: int) -> int:
    workers = dispatch.gemm_threads(m, n, k)
    if activation == "bfloat16":
        return bfloat16_floats(m, n, k, workers)
    return max(float32_floats(m, n, k, workers, *tile) for tile in TILES)


def tiles_along(k: int) -> int:
    return -(-min(k, DEEP) // DEPTH)


def at_a_time(size: int, k: int, packed: int) -> int:
    """Rows of a, or columns of b, whose panels are packed together."""
    most = max(1, packed // (tiles_along(k) * BYTES * 2)) * BLOCK
    return min(most, -(-size // BLOCK) * BLOCK)


def panel_bytes(m: int, n: int, k: int) -> tuple[int, int]:
    """Bytes in which the panels of a rectangle (m n) fit, and those for its sums, where k is deep. Both are whole cache
    lines."""
    high, wide = at_a_time(m, k, PACKED_A), at_a_time(n, k, PACKED_B)
    sums = -(-m // BLOCK) * wide * BLOCK * 4 if k > DEEP else 0
    return (high + wide) // SIDE * tiles_along(k) * BYTES + LINE, sums


def rectangle_sizes(m: int, n: int, workers: int) -> tuple[tuple[int, int], int, int]:
    """The grid of rectangles, and the most rows and columns that one has."""
    across, down = thread_grid(m, n, workers, BLOCK, BLOCK)
    return (across, down), -(-m // down) + BLOCK, -(-n // across) + BLOCK


def bfloat16_floats(m: int, n: int, k: int, workers: int) -> int:
    """Floats in which a GEMM on so many threads packs and, where k is deep, sums."""
    (across, down), rows, columns = rectangle_sizes(m, n, workers)
    return (across * down * sum(panel_bytes(rows, columns, k)) + LINE) // 4
