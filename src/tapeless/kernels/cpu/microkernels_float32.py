"""What the products of our own are made of: instructions named one by one, for vectors of whatever width there is.

A tile of c stays in registers while it is summed: `rows` times `vectors` vectors, to which each step along k adds one
row of b times one number of a. Of every element the sum has the same order, whatever tile it lies in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import float32, intp, types, uintp
from numba.extending import intrinsic

from tapeless.kernels.cpu.bfloat16 import HALF, emit_upcast

FLOAT, POINTER, WORD, INDEX, BYTE = ir.FloatType(), ir.PointerType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
LINE = 64  # bytes that memory comes in


@dataclass(frozen=True)
class Tiles:
    """Numbers in a vector, and a tile's rows and vectors: nearly all the registers hold sums."""

    lanes: int
    rows: int
    vectors: int


def features_of(told: str | None) -> set[str]:
    """Of the machine that Numba compiles for: this one, unless it was told of another's features."""
    if told is not None:
        return {name.removeprefix("+") for name in told.split(",")}
    return {name for name, there in llvm.get_host_cpu_features().items() if there}


def tiles_for(features: str | None, machine: str) -> Tiles:
    named = features_of(features)
    if "avx512f" in named:
        return Tiles(16, 12, 2)
    if "avx2" in named:
        return Tiles(8, 6, 2)
    return Tiles(4, 6, 4) if machine.lower() in ("aarch64", "arm64") else Tiles(4, 4, 2)


def i64(number: int) -> Any:
    return ir.Constant(WORD, number)


def declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An instruction by LLVM's name for it."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def element_pointer(builder: Any, base: Any, index: Any) -> Any:
    """Where the float with this index lies."""
    return builder.gep(base, [index], source_etype=FLOAT)


def load_vector(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(place, typ=kind, align=4)


@intrinsic(prefer_literal=True)
def gemm_tile(typing, lanes, rows, vectors, step, k, a, b, c, apart, alpha, add):
    """c = alpha · a @ b, to which c is added where `add`; a holds k times `rows` numbers, b k times `step`."""
    lanes, rows, vectors, step = (each.literal_value for each in (lanes, rows, vectors, step))

    def generate(context, builder, signature, arguments):
        k, a, b, c, apart, alpha, add = arguments[4:]
        vector = ir.VectorType(FLOAT, lanes)
        multiply_add = declare(builder, f"llvm.fmuladd.v{lanes}f32", vector, [vector, vector, vector])
        a, b, c = (builder.inttoptr(each, POINTER) for each in (a, b, c))
        before, loop, after = builder.block, builder.append_basic_block("along"), builder.append_basic_block("store")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(WORD)
        at.add_incoming(i64(0), before)
        sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
        first_a, first_b = builder.mul(at, i64(rows)), builder.mul(at, i64(step))
        row_of_b = [
            load_vector(builder, element_pointer(builder, b, builder.add(first_b, i64(lanes * j))), vector)
            for j in range(vectors)
        ]
        made = []
        for i in range(rows):
            number = builder.load(element_pointer(builder, a, builder.add(first_a, i64(i))), typ=FLOAT, align=4)
            number = broadcast(builder, number, vector)
            made.append([builder.call(multiply_add, [number, row_of_b[j], sums[i][j]]) for j in range(vectors)])
        following = builder.add(at, i64(1))
        at.add_incoming(following, loop)
        for row, new in zip(sums, made, strict=True):
            for each, value in zip(row, new, strict=True):
                each.add_incoming(ir.Constant(vector, None), before)
                each.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, k), loop, after)
        builder.position_at_end(after)
        factor = broadcast(builder, alpha, vector)
        places = [
            [
                element_pointer(builder, c, builder.add(builder.mul(apart, i64(i)), i64(lanes * j)))
                for j in range(vectors)
            ]
            for i in range(rows)
        ]
        with builder.if_else(builder.icmp_signed("!=", add, i64(0))) as (adds, writes):
            with adds:
                for i in range(rows):
                    for j in range(vectors):
                        old = load_vector(builder, places[i][j], vector)
                        builder.store(builder.call(multiply_add, [factor, made[i][j], old]), places[i][j], align=4)
            with writes:
                for i in range(rows):
                    for j in range(vectors):
                        builder.store(builder.fmul(factor, made[i][j]), places[i][j], align=4)
        return context.get_dummy_value()

    return types.void(*literals(lanes, rows, vectors, step), intp, uintp, uintp, uintp, intp, float32, intp), generate


@intrinsic(prefer_literal=True)
def prefetch_tile(typing, rows, lines, place, apart):
    """Asks for the memory that a tile will be stored in, rows of so many cache lines that lie so many bytes apart: it
    is on its way while the tile is summed."""
    rows, lines = rows.literal_value, lines.literal_value

    def generate(context, builder, signature, arguments):
        place, apart = builder.inttoptr(arguments[2], POINTER), arguments[3]
        prefetch_line = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [POINTER, INDEX, INDEX, INDEX])
        to_write, to_stay, data = (ir.Constant(INDEX, number) for number in (1, 3, 1))
        for i in range(rows):
            for line in range(lines):
                offset = builder.add(builder.mul(apart, i64(i)), i64(LINE * line))
                builder.call(prefetch_line, [builder.gep(place, [offset], source_etype=BYTE), to_write, to_stay, data])
        return context.get_dummy_value()

    return types.void(*literals(rows, lines), uintp, intp), generate


@intrinsic
def prefetch_line(typing, place):
    """Asks for a cache line that will be read, so far as to the second cache: the first is full of what is read now."""

    def generate(context, builder, signature, arguments):
        prefetch_line = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [POINTER, INDEX, INDEX, INDEX])
        to_read, near, data = (ir.Constant(INDEX, number) for number in (0, 2, 1))
        builder.call(prefetch_line, [builder.inttoptr(arguments[0], POINTER), to_read, near, data])
        return context.get_dummy_value()

    return types.void(uintp), generate


@intrinsic(prefer_literal=True)
def gemm_strip(typing, lanes, rows, k, a, a_row, a_column, b, b_row, c, c_row, alpha, add):
    """As `gemm_tile`, one vector wide and with a and b where they lie: for products that are too small to be packed."""
    lanes, rows = lanes.literal_value, rows.literal_value

    def generate(context, builder, signature, arguments):
        k, a, a_row, a_column, b, b_row, c, c_row, alpha, add = arguments[2:]
        vector = ir.VectorType(FLOAT, lanes)
        multiply_add = declare(builder, f"llvm.fmuladd.v{lanes}f32", vector, [vector, vector, vector])
        a, b, c = (builder.inttoptr(each, POINTER) for each in (a, b, c))
        firsts = [element_pointer(builder, a, builder.mul(a_row, i64(i))) for i in range(rows)]
        before, loop, after = builder.block, builder.append_basic_block("along"), builder.append_basic_block("store")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(WORD)
        at.add_incoming(i64(0), before)
        sums, made = [builder.phi(vector) for _ in range(rows)], []
        row_of_b = load_vector(builder, element_pointer(builder, b, builder.mul(at, b_row)), vector)
        for first, each in zip(firsts, sums, strict=True):
            number = builder.load(element_pointer(builder, first, builder.mul(at, a_column)), typ=FLOAT, align=4)
            made.append(builder.call(multiply_add, [broadcast(builder, number, vector), row_of_b, each]))
        following = builder.add(at, i64(1))
        at.add_incoming(following, loop)
        for each, value in zip(sums, made, strict=True):
            each.add_incoming(ir.Constant(vector, None), before)
            each.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, k), loop, after)
        builder.position_at_end(after)
        factor = broadcast(builder, alpha, vector)
        places = [element_pointer(builder, c, builder.mul(c_row, i64(i))) for i in range(rows)]
        with builder.if_else(builder.icmp_signed("!=", add, i64(0))) as (adds, writes):
            with adds:
                for place, value in zip(places, made, strict=True):
                    whole = builder.call(multiply_add, [factor, value, load_vector(builder, place, vector)])
                    builder.store(whole, place, align=4)
            with writes:
                for place, value in zip(places, made, strict=True):
                    builder.store(builder.fmul(factor, value), place, align=4)
        return context.get_dummy_value()

    numbers = (intp, uintp, intp, intp, uintp, intp, uintp, intp, float32, intp)
    return types.void(*literals(lanes, rows), *numbers), generate


def literals(*numbers: int) -> list[Any]:
    return [types.IntegerLiteral(number) for number in numbers]


def broadcast(builder: Any, number: Any, vector: Any) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INDEX, vector.count), None))


def _side_by_side(builder: Any, lanes: int, vectors: int, arguments: Any) -> Iterator[tuple[Any, Any]]:
    """Of the last two arguments, which are addresses: places from the first on, and the vectors from the second."""
    to, source = (builder.inttoptr(each, POINTER) for each in arguments[-2:])
    for j in range(vectors):
        offset = i64(lanes * j)
        loaded = load_vector(builder, element_pointer(builder, source, offset), ir.VectorType(FLOAT, lanes))
        yield element_pointer(builder, to, offset), loaded


@intrinsic(prefer_literal=True)
def copy_vectors(typing, lanes, vectors, to, source):
    lanes, vectors = lanes.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        for place, loaded in _side_by_side(builder, lanes, vectors, arguments):
            builder.store(loaded, place, align=4)
        return context.get_dummy_value()

    return types.void(*literals(lanes, vectors), uintp, uintp), generate


@intrinsic(prefer_literal=True)
def add_vectors(typing, lanes, vectors, to, source):
    lanes, vectors = lanes.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        for place, loaded in _side_by_side(builder, lanes, vectors, arguments):
            builder.store(builder.fadd(load_vector(builder, place, loaded.type), loaded), place, align=4)
        return context.get_dummy_value()

    return types.void(*literals(lanes, vectors), uintp, uintp), generate


@intrinsic(prefer_literal=True)
def keep_positive(typing, lanes, vectors, to, mask):
    """0 where the mask is ≤ 0. NaN in it is not, and what it lets through stays."""
    lanes, vectors = lanes.literal_value, vectors.literal_value

    def generate(context, builder, signature, arguments):
        for place, above in _side_by_side(builder, lanes, vectors, arguments):
            nothing = ir.Constant(above.type, [0.0] * lanes)
            shut = builder.fcmp_ordered("<=", above, nothing)
            builder.store(builder.select(shut, nothing, load_vector(builder, place, above.type)), place, align=4)
        return context.get_dummy_value()

    return types.void(*literals(lanes, vectors), uintp, uintp), generate


@intrinsic(prefer_literal=True)
def transpose_block(typing, lanes, height, to, source, apart, last):
    """`height` rows of `lanes` numbers, which lie `apart`, as `lanes` rows of `height`; instead of a row behind `last`
    it reads that one. What is stored begins at `to` and reaches less than a vector beyond its end."""
    lanes, height = lanes.literal_value, height.literal_value

    def generate(context, builder, signature, arguments):
        to, source, apart, last = arguments[2:]
        vector = ir.VectorType(FLOAT, lanes)
        to, source = builder.inttoptr(to, POINTER), builder.inttoptr(source, POINTER)
        columns_of = []
        for first in range(0, height, lanes):
            rows = []
            for i in range(first, first + lanes):
                number = i64(min(i, height - 1))
                number = builder.select(builder.icmp_signed("<", number, last), number, last)
                rows.append(load_vector(builder, element_pointer(builder, source, builder.mul(number, apart)), vector))
            columns_of.append(transposed_square(builder, rows))
        for k in range(lanes):
            for block, columns in enumerate(columns_of):
                builder.store(columns[k], element_pointer(builder, to, i64(k * height + block * lanes)), align=4)
        return context.get_dummy_value()

    return types.void(*literals(lanes, height), uintp, uintp, intp, intp), generate


def transposed_square(builder: Any, rows: list[Any]) -> list[Any]:
    """A square of vectors, transposed: off the diagonal, squares half as large change places, then those in them."""
    lanes, size = len(rows), len(rows) // 2
    kind = ir.VectorType(INDEX, lanes)
    while size:
        upper = [lane if not lane & size else lane - size + lanes for lane in range(lanes)]
        lower = [lane + size if not lane & size else lane + lanes for lane in range(lanes)]
        rows = list(rows)
        for i in (i for i in range(lanes) if not i & size):
            above, below = rows[i], rows[i + size]
            rows[i] = builder.shuffle_vector(above, below, ir.Constant(kind, upper))
            rows[i + size] = builder.shuffle_vector(above, below, ir.Constant(kind, lower))
        size //= 2
    return rows


@intrinsic
def load_float(typing, place, index):
    def generate(context, builder, signature, arguments):
        return builder.load(
            element_pointer(builder, builder.inttoptr(arguments[0], POINTER), arguments[1]), typ=FLOAT, align=4
        )

    return float32(uintp, intp), generate


@intrinsic
def load_bfloat16(typing, place, index):
    """The bfloat16 with this index, as the float that it is."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(builder.inttoptr(arguments[0], POINTER), [arguments[1]], source_etype=HALF)
        return emit_upcast(builder, builder.load(place, typ=HALF, align=2))

    return float32(uintp, intp), generate


@intrinsic
def store_float(typing, place, index, value):
    def generate(context, builder, signature, arguments):
        place, index, value = arguments
        builder.store(value, element_pointer(builder, builder.inttoptr(place, POINTER), index), align=4)
        return context.get_dummy_value()

    return types.void(uintp, intp, float32), generate


@intrinsic(prefer_literal=True)
def stack_floats(typing, floats):
    """The address of so many floats, which are there until the function returns."""
    floats = floats.literal_value

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(FLOAT, floats))
            room.align = 64
        return builder.ptrtoint(room, WORD)

    return types.uintp(*literals(floats)), generate


GEMM_ARGUMENTS = (intp, intp, intp, intp, intp, intp, float32, uintp, intp, uintp, intp, float32, uintp, intp)


@intrinsic
def call_gemm(typing, address, order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """Call the GEMM at an address, with CBLAS's arguments. The address is an argument of the kernel, no part of it: the
    machine code on disk serves any GEMM."""

    def generate(context, builder, signature, arguments):
        kinds = [context.get_value_type(each) for each in GEMM_ARGUMENTS]
        function = ir.FunctionType(ir.VoidType(), kinds)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(uintp, *GEMM_ARGUMENTS), generate
