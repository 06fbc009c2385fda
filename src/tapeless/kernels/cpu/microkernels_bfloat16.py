"""The micro-kernels of the bfloat16 GEMM in LLVM IR: AMX's instructions where the machine has them, else avx512_bf16's.

They multiply tiles of 16 by 16 words, a word being two numbers that follow each other along k. A tile of a has 16 rows
of 16 words; one of b, 16 words of 16 columns. A matrix in memory has the numbers of a word side by side (k is its inner
axis) or one below the other (then two rows are interleaved), and its words stand as a tile has them or transposed.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import llvmlite.ir as ir
from numba import intp, types, uintp

from tapeless.kernels.cpu.bfloat16 import emit_rounded, emit_upcast
from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.microkernels_float32 import (
    INDEX,
    POINTER,
    WORD,
    broadcast,
    declare,
    i64,
    repeat,
    transposed_square,
)
from tapeless.kernels.cpu.sizes import BYTES, SIDE

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux: a process asks before it uses AMX's registers
FLOAT, BYTE, HALF = ir.FloatType(), ir.IntType(8), ir.IntType(16)
WORDS = ir.VectorType(INDEX, SIDE)
HALVES = ir.VectorType(HALF, SIDE)
FLOATS = ir.VectorType(FLOAT, SIDE)
AT_ONCE = 8  # rows of a tile whose sums avx512_bf16 has in registers


class BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


PAIRS = ir.VectorType(BFloat(), 2 * SIDE)
LANES = ir.VectorType(INDEX, 2 * SIDE)


@cache
def amx_permitted() -> bool:
    """Ask the system for AMX's registers; returns whether this process may use them."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


def _byte(builder: Any, base: Any, offset: Any) -> Any:
    return builder.gep(base, [offset], source_etype=BYTE)


def _floats(builder: Any, place: Any, part: int) -> Any:
    return builder.load(_byte(builder, place, i64(part * SIDE * 4)), typ=FLOATS, align=4)


@instruction(types.void(uintp, uintp, intp, intp), literals=3)
def pack_tile(builder, floats, interleaved, transposing, to, source, apart, last):
    """to (16 words 16) from rows of bfloat16, or of `floats` that are rounded, which lie `apart` bytes. If a word's
    numbers are side by side (not `interleaved`), a row behind `last` is read as that one."""

    def side_by_side(builder, place):
        if not floats:
            return builder.load(place, typ=ir.VectorType(HALF, 2 * SIDE), align=2)
        return rounded_pair(builder, *(_floats(builder, place, j) for j in range(2)))

    def one_below_the_other(builder, places):
        if floats:
            two = rounded_pair(builder, *(_floats(builder, place, 0) for place in places)), None
        else:
            two = tuple(builder.load(place, typ=HALVES, align=2) for place in places)
        order = [number for j in range(SIDE) for number in (j, SIDE + j)]
        second = two[1] or ir.Constant(two[0].type, ir.Undefined)
        return builder.shuffle_vector(two[0], second, ir.Constant(LANES, order))

    to, source = builder.inttoptr(to, POINTER), builder.inttoptr(source, POINTER)
    rows = []
    for i in range(SIDE):
        if interleaved:
            places = [_byte(builder, source, builder.mul(i64(2 * i + j), apart)) for j in range(2)]
            rows.append(builder.bitcast(one_below_the_other(builder, places), WORDS))
        else:
            number = builder.select(builder.icmp_signed("<", i64(i), last), i64(i), last)
            row = side_by_side(builder, _byte(builder, source, builder.mul(number, apart)))
            rows.append(builder.bitcast(row, WORDS))
    for i, row in enumerate(transposed_square(builder, rows) if transposing else rows):
        builder.store(row, _byte(builder, to, i64(i * SIDE * 4)), align=4)


@instruction(types.void())
def amx_begin(builder):
    """Configure all eight of AMX's registers to hold 16 rows of 64 bytes."""
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(BYTE, 64))
        memory.align = 64
    layout = [0] * 64
    layout[0] = 1
    for number in range(8):
        layout[16 + 2 * number], layout[48 + number] = 64, SIDE
    builder.store(ir.Constant(ir.ArrayType(BYTE, 64), bytearray(layout)), memory)
    builder.call(declare(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [POINTER]), [memory])


@instruction(types.void())
def amx_end(builder):
    """Give AMX's registers back."""
    builder.call(declare(builder, "llvm.x86.tilerelease", ir.VoidType(), []), [])


@instruction(types.void(intp, uintp, uintp, uintp, uintp, uintp, intp))
def amx_tiles(builder, k, upper, lower, left, right, to, first):
    """AMX: to (32 32) += (upper; lower) @ (left, right), each k tiles; = if these are the `first`."""
    panels = [builder.inttoptr(each, POINTER) for each in (upper, lower, left, right)]
    to = builder.inttoptr(to, POINTER)
    nothing = ir.VoidType()
    zero = declare(builder, "llvm.x86.tilezero", nothing, [BYTE])
    load = declare(builder, "llvm.x86.tileloadd64", nothing, [BYTE, POINTER, WORD])
    multiply = declare(builder, "llvm.x86.tdpbf16ps", nothing, [BYTE, BYTE, BYTE])
    store = declare(builder, "llvm.x86.tilestored64", nothing, [BYTE, POINTER, WORD])
    register = [ir.Constant(BYTE, number) for number in range(8)]
    places = [_byte(builder, to, i64(number // 2 * SIDE * SIDE * 8 + number % 2 * SIDE * 4)) for number in range(4)]
    with builder.if_else(builder.icmp_signed("!=", first, i64(0))) as (begins, continues):
        with begins:
            for number in range(4):
                builder.call(zero, [register[number]])
        with continues:
            for number in range(4):
                builder.call(load, [register[number], places[number], i64(SIDE * 8)])

    def along(at, kept):
        offset = builder.mul(at, i64(BYTES))
        for number, panel in enumerate(panels):
            builder.call(load, [register[4 + number], _byte(builder, panel, offset), i64(SIDE * 4)])
        for number in range(4):
            builder.call(multiply, [register[number], register[4 + number // 2], register[6 + number % 2]])
        return []

    repeat(builder, k, [], along)
    for number in range(4):
        builder.call(store, [register[number], places[number], i64(SIDE * 8)])


@instruction(types.void(intp, uintp, uintp, uintp, uintp, intp))
def avx512_half_tile(builder, k, a, left, right, to, first):
    """avx512_bf16: to (8 32) += a (8 rows of a tile) @ (left, right), each k tiles; = if these are the `first`."""
    a, left, right, to = (builder.inttoptr(each, POINTER) for each in (a, left, right, to))
    multiply = declare(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [FLOATS, PAIRS, PAIRS])
    places = [_byte(builder, to, i64(number * SIDE * 4)) for number in range(2 * AT_ONCE)]
    begins, before = builder.icmp_signed("!=", first, i64(0)), builder.block
    with builder.if_then(builder.not_(begins)):
        waiting, within = [builder.load(place, typ=FLOATS, align=4) for place in places], builder.block
    old = [builder.phi(FLOATS) for _ in places]
    for each, value in zip(old, waiting, strict=True):
        each.add_incoming(ir.Constant(FLOATS, None), before)
        each.add_incoming(value, within)

    def along(at, sums):
        offset, values = builder.mul(at, i64(BYTES)), list(sums)
        for word in range(SIDE):
            places = [_byte(builder, each, builder.add(offset, i64(word * SIDE * 4))) for each in (left, right)]
            b = [builder.bitcast(builder.load(each, typ=WORDS, align=4), PAIRS) for each in places]
            for i in range(AT_ONCE):
                place = _byte(builder, a, builder.add(offset, i64((i * SIDE + word) * 4)))
                pair = broadcast(builder, builder.load(place, typ=INDEX, align=4), WORDS)
                for j in range(2):
                    terms = [values[2 * i + j], builder.bitcast(pair, PAIRS), b[j]]
                    values[2 * i + j] = builder.call(multiply, terms)
        return values

    values = repeat(builder, k, old, along)
    for place, value in zip(places, values, strict=True):
        builder.store(value, place, align=4)


@instruction(types.void(uintp, intp, intp, types.float32, uintp, uintp, intp), literals=2)
def store_rows(builder, rounded, add, tile, rows, columns, factor, bias, place, apart):
    """place (rows columns) = factor · tile (rows 32) + bias (columns), of bfloat16, if it has an address; `rounded` to
    bfloat16 or not, written or added. Rows lie `apart` bytes."""
    tile, place = builder.inttoptr(tile, POINTER), builder.inttoptr(place, POINTER)
    factor = broadcast(builder, factor, FLOATS)
    columns = broadcast(builder, builder.trunc(columns, INDEX), LANES)
    there = builder.icmp_signed("<", ir.Constant(LANES, list(range(2 * SIDE))), columns)
    halves = [_half(builder, there, j) for j in range(2)]
    shifts = [_loaded_where(builder, bias, j, halves[j]) for j in range(2)]

    def row(at, kept):
        source = _byte(builder, tile, builder.mul(at, i64(2 * SIDE * 4)))
        to = _byte(builder, place, builder.mul(at, apart))
        values = []
        for j in range(2):
            value = builder.load(_byte(builder, source, i64(j * SIDE * 4)), typ=FLOATS, align=4)
            values.append(builder.fadd(builder.fmul(value, factor), shifts[j]))
        if rounded:
            if add:
                parts = [_byte(builder, to, i64(j * SIDE * 2)) for j in range(2)]
                old = [_masked_load(builder, part, HALVES, halves[j]) for j, part in enumerate(parts)]
                values = [builder.fadd(emit_upcast(builder, old[j]), values[j]) for j in range(2)]
            _masked_store(builder, to, rounded_pair(builder, *values), there)
            return []
        for j, value in enumerate(values):
            part = _byte(builder, to, i64(j * SIDE * 4))
            if add:
                value = builder.fadd(_masked_load(builder, part, FLOATS, halves[j]), value)
            _masked_store(builder, part, value, halves[j])
        return []

    repeat(builder, rows, [], row)


def rounded_pair(builder: Any, low: Any, high: Any) -> Any:
    """32 floats as bfloat16, to the nearest even, by the processor: what is too small for a float32 that keeps its
    digits becomes 0, as in the multiplications. NaN stays NaN."""
    convert = declare(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", PAIRS, [FLOATS, FLOATS])
    return builder.bitcast(builder.call(convert, [high, low]), ir.VectorType(HALF, 2 * SIDE))


def _masked_load(builder: Any, place: Any, kind: Any, mask: Any) -> Any:
    name = f"llvm.masked.load.v{kind.count}{kind.element.intrinsic_name}.p0"
    load = declare(builder, name, kind, [POINTER, INDEX, mask.type, kind])
    return builder.call(load, [place, ir.Constant(INDEX, 2), mask, ir.Constant(kind, None)])


def _masked_store(builder: Any, place: Any, value: Any, mask: Any) -> None:
    name = f"llvm.masked.store.v{value.type.count}{value.type.element.intrinsic_name}.p0"
    store = declare(builder, name, ir.VoidType(), [value.type, POINTER, INDEX, mask.type])
    builder.call(store, [value, place, ir.Constant(INDEX, 2), mask])


def _half(builder: Any, mask: Any, part: int) -> Any:
    chosen = ir.Constant(WORDS, [part * SIDE + lane for lane in range(SIDE)])
    return builder.shuffle_vector(mask, ir.Constant(mask.type, ir.Undefined), chosen)


def _loaded_where(builder: Any, bias: Any, part: int, mask: Any) -> Any:
    """16 of a bias, or zeros where it has no address: negative ones, which change nothing that they are added to."""
    there, before = builder.icmp_unsigned("!=", bias, i64(0)), builder.block
    with builder.if_then(there):
        place = _byte(builder, builder.inttoptr(bias, POINTER), i64(part * SIDE * 2))
        loaded, within = emit_upcast(builder, _masked_load(builder, place, HALVES, mask)), builder.block
    found = builder.phi(FLOATS)
    found.add_incoming(ir.Constant(FLOATS, [-0.0] * SIDE), before)
    found.add_incoming(loaded, within)
    return found


@instruction(intp(intp, uintp, intp))
def load_bits(builder, floats, place, index):
    """The bits of a bfloat16, or of a float32 that is rounded to one."""
    place = builder.inttoptr(place, POINTER)
    with builder.if_else(builder.icmp_signed("!=", floats, i64(0))) as (rounds, keeps):
        with rounds:
            value = builder.load(builder.gep(place, [index], source_etype=FLOAT), typ=FLOAT, align=4)
            rounded, first = emit_rounded(builder, value), builder.block
        with keeps:
            kept = builder.load(builder.gep(place, [index], source_etype=HALF), typ=HALF, align=2)
            second = builder.block
    found = builder.phi(HALF)
    found.add_incoming(rounded, first)
    found.add_incoming(kept, second)
    return builder.zext(found, WORD)


@instruction(types.void(uintp, intp, intp))
def store_word(builder, place, index, value):
    """Store the 32-bit word with this index."""
    to = builder.gep(builder.inttoptr(place, POINTER), [index], source_etype=INDEX)
    builder.store(builder.trunc(value, INDEX), to, align=4)
