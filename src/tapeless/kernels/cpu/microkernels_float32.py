"""The micro-kernels of the float32 GEMM in LLVM IR, for vectors of whatever width there is.

A tile of c stays in registers while it is summed: `rows` times `vectors` vectors, to which each step along k adds one
row of b times one number of a. Each element is summed in the same order, whatever tile it lies in.

Arguments named `lanes` (numbers in a vector), `rows`, `vectors`, `height`, `step` and `floats` are literals, for which
the code is made. Matrices are addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import float32, intp, types, uintp

from tapeless.kernels.cpu.bfloat16 import HALF, emit_upcast
from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.sizes import LINE

FLOAT, POINTER, WORD, INDEX, BYTE = ir.FloatType(), ir.PointerType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)


@dataclass(frozen=True)
class Tiles:
    """The numbers in a vector, and the rows and vectors of a tile: nearly all the registers hold sums."""

    lanes: int
    rows: int
    vectors: int


def features_of(configured: str | None) -> set[str]:
    """The features of the machine that Numba compiles for: this one, unless it is configured for another."""
    if configured is not None:
        return {name.removeprefix("+") for name in configured.split(",")}
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
    """An instruction, declared by LLVM's name for it."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def element_pointer(builder: Any, base: Any, index: Any) -> Any:
    """The place of the float with this index."""
    return builder.gep(base, [index], source_etype=FLOAT)


def load_vector(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(place, typ=kind, align=4)


def repeat(builder: Any, count: Any, first: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Emit a loop of `count` steps, one at least: what `step` makes of the number of a step and of what the one before
    it made (`first` before the first). Returns what the last step made."""
    before, loop, after = builder.block, builder.append_basic_block("along"), builder.append_basic_block("behind")
    builder.branch(loop)
    builder.position_at_end(loop)
    at, kept = builder.phi(WORD), [builder.phi(each.type) for each in first]
    made, following = step(at, kept), builder.add(at, i64(1))
    at.add_incoming(i64(0), before)
    at.add_incoming(following, builder.block)
    for each, begin, value in zip(kept, first, made, strict=True):
        each.add_incoming(begin, before)
        each.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return made


def _multiply_add(builder: Any, vector: Any) -> Any:
    return declare(builder, f"llvm.fmuladd.v{vector.count}f32", vector, [vector, vector, vector])


def _store_scaled(builder: Any, places: list[Any], sums: list[Any], alpha: Any, add: Any) -> None:
    """Store alpha · sums, added to what is there if `add`."""
    vector = sums[0].type
    factor, multiply_add = broadcast(builder, alpha, vector), _multiply_add(builder, vector)
    with builder.if_else(builder.icmp_signed("!=", add, i64(0))) as (adds, writes):
        with adds:
            for place, value in zip(places, sums, strict=True):
                old = load_vector(builder, place, vector)
                builder.store(builder.call(multiply_add, [factor, value, old]), place, align=4)
        with writes:
            for place, value in zip(places, sums, strict=True):
                builder.store(builder.fmul(factor, value), place, align=4)


@instruction(types.void(intp, uintp, uintp, uintp, intp, float32, intp), literals=4)
def gemm_tile(builder, lanes, rows, vectors, step, k, a, b, c, apart, alpha, add):
    """c (rows vectors·lanes) = alpha · a @ b, plus c if `add`: packed a (k rows) and b (k step), rows of c `apart`."""
    vector = ir.VectorType(FLOAT, lanes)
    multiply_add = _multiply_add(builder, vector)
    a, b, c = (builder.inttoptr(each, POINTER) for each in (a, b, c))

    def along(at, sums):
        first_a, first_b = builder.mul(at, i64(rows)), builder.mul(at, i64(step))
        row_of_b = [
            load_vector(builder, element_pointer(builder, b, builder.add(first_b, i64(lanes * j))), vector)
            for j in range(vectors)
        ]
        made = []
        for i in range(rows):
            number = builder.load(element_pointer(builder, a, builder.add(first_a, i64(i))), typ=FLOAT, align=4)
            number = broadcast(builder, number, vector)
            made += [builder.call(multiply_add, [number, row_of_b[j], sums[i * vectors + j]]) for j in range(vectors)]
        return made

    sums = repeat(builder, k, [ir.Constant(vector, None)] * (rows * vectors), along)
    places = [
        element_pointer(builder, c, builder.add(builder.mul(apart, i64(i)), i64(lanes * j)))
        for i in range(rows)
        for j in range(vectors)
    ]
    _store_scaled(builder, places, sums, alpha, add)


@instruction(types.void(uintp, intp), literals=2)
def prefetch_tile(builder, rows, lines, place, apart):
    """Prefetch the memory that a tile will be stored in, rows of so many cache `lines` that lie so many bytes `apart`:
    it is on its way while the tile is summed."""
    place, apart = builder.inttoptr(place, POINTER), apart
    prefetch = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [POINTER, INDEX, INDEX, INDEX])
    to_write, to_stay, data = (ir.Constant(INDEX, number) for number in (1, 3, 1))
    for i in range(rows):
        for line in range(lines):
            offset = builder.add(builder.mul(apart, i64(i)), i64(LINE * line))
            builder.call(prefetch, [builder.gep(place, [offset], source_etype=BYTE), to_write, to_stay, data])


@instruction(types.void(uintp))
def prefetch_line(builder, place):
    """Prefetch a cache line that will be read, into the second cache: the first is full of what is read now."""
    prefetch = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [POINTER, INDEX, INDEX, INDEX])
    to_read, near, data = (ir.Constant(INDEX, number) for number in (0, 2, 1))
    builder.call(prefetch, [builder.inttoptr(place, POINTER), to_read, near, data])


@instruction(types.void(intp, uintp, intp, intp, uintp, intp, uintp, intp, float32, intp), literals=2)
def gemm_strip(builder, lanes, rows, k, a, a_row, a_column, b, b_row, c, c_row, alpha, add):
    """c (rows lanes) = alpha · a (rows k) @ b (k lanes), plus c if `add`, of unpacked a and b: for small GEMMs."""
    vector = ir.VectorType(FLOAT, lanes)
    multiply_add = _multiply_add(builder, vector)
    a, b, c = (builder.inttoptr(each, POINTER) for each in (a, b, c))
    firsts = [element_pointer(builder, a, builder.mul(a_row, i64(i))) for i in range(rows)]

    def along(at, sums):
        row_of_b, made = load_vector(builder, element_pointer(builder, b, builder.mul(at, b_row)), vector), []
        for first, each in zip(firsts, sums, strict=True):
            number = builder.load(element_pointer(builder, first, builder.mul(at, a_column)), typ=FLOAT, align=4)
            made.append(builder.call(multiply_add, [broadcast(builder, number, vector), row_of_b, each]))
        return made

    sums = repeat(builder, k, [ir.Constant(vector, None)] * rows, along)
    places = [element_pointer(builder, c, builder.mul(c_row, i64(i))) for i in range(rows)]
    _store_scaled(builder, places, sums, alpha, add)


def broadcast(builder: Any, number: Any, vector: Any) -> Any:
    """A vector of this type with the number in each lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INDEX, vector.count), None))


def _side_by_side(builder: Any, lanes: int, vectors: int, to: Any, source: Any) -> Iterator[tuple[Any, Any]]:
    """The places from one address on, and the vectors from the other."""
    to, source = builder.inttoptr(to, POINTER), builder.inttoptr(source, POINTER)
    for j in range(vectors):
        offset = i64(lanes * j)
        loaded = load_vector(builder, element_pointer(builder, source, offset), ir.VectorType(FLOAT, lanes))
        yield element_pointer(builder, to, offset), loaded


@instruction(types.void(uintp, uintp), literals=2)
def copy_vectors(builder, lanes, vectors, to, source):
    """to (vectors·lanes) = source."""
    for place, loaded in _side_by_side(builder, lanes, vectors, to, source):
        builder.store(loaded, place, align=4)


@instruction(types.void(uintp, uintp), literals=2)
def add_vectors(builder, lanes, vectors, to, source):
    """to (vectors·lanes) += source."""
    for place, loaded in _side_by_side(builder, lanes, vectors, to, source):
        builder.store(builder.fadd(load_vector(builder, place, loaded.type), loaded), place, align=4)


@instruction(types.void(uintp, uintp), literals=2)
def keep_positive(builder, lanes, vectors, to, mask):
    """to (vectors·lanes) = 0 where the mask is ≤ 0. NaN in the mask is not, and what it lets through stays."""
    for place, above in _side_by_side(builder, lanes, vectors, to, mask):
        nothing = ir.Constant(above.type, [0.0] * lanes)
        masked = builder.fcmp_ordered("<=", above, nothing)
        builder.store(builder.select(masked, nothing, load_vector(builder, place, above.type)), place, align=4)


@instruction(types.void(uintp, uintp, intp, intp), literals=2)
def transpose_block(builder, lanes, height, to, source, apart, last):
    """to (lanes height) = the transpose of source (height lanes), whose rows lie `apart`. For a row behind `last` that
    one is read. What is stored reaches less than a vector beyond its end."""
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


def transposed_square(builder: Any, rows: list[Any]) -> list[Any]:
    """A square of vectors transposed: off the diagonal, squares half as large change places, then those in them."""
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


@instruction(float32(uintp, intp))
def load_float(builder, place, index):
    """The float with this index."""
    return builder.load(element_pointer(builder, builder.inttoptr(place, POINTER), index), typ=FLOAT, align=4)


@instruction(float32(uintp, intp))
def load_bfloat16(builder, place, index):
    """The bfloat16 with this index, upcast."""
    place = builder.gep(builder.inttoptr(place, POINTER), [index], source_etype=HALF)
    return emit_upcast(builder, builder.load(place, typ=HALF, align=2))


@instruction(types.void(uintp, intp, float32))
def store_float(builder, place, index, value):
    """Store the float with this index."""
    builder.store(value, element_pointer(builder, builder.inttoptr(place, POINTER), index), align=4)


@instruction(types.uintp(), literals=1)
def stack_floats(builder, floats):
    """The address of so many floats on the stack, which are there until the function returns."""
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(FLOAT, floats))
        memory.align = 64
    return builder.ptrtoint(memory, WORD)


@instruction(types.void(uintp, *[intp] * 6, float32, uintp, intp, uintp, intp, float32, uintp, intp))
def call_gemm(builder, address, order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """Call the GEMM at an address, with CBLAS's arguments. The address is an argument of the kernel, no part of it: the
    machine code on disk serves any GEMM."""
    values = [order, transpose_a, transpose_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row]
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
    builder.call(builder.inttoptr(address, kind.as_pointer()), values)
