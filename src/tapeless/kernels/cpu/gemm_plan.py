"""How a GEMM is divided among threads: a plan for each, which says in 64-bit words which rectangle of c it computes.

c (m n) is divided into rectangles, side by side and one below the other. They share nothing but what they read. A plan
holds the rectangle's own sizes and addresses, so that a thread needs nothing else.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import intp, types, uintp
from numba.extending import intrinsic
from numpy.typing import NDArray

from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.microkernels_float32 import POINTER, WORD, i64
from tapeless.kernels.cpu.vector import inlined

Array = NDArray[Any]

# The fields of a plan: sizes of the rectangle, and whether it is added to c; of op(a) (m k) and op(b) (k n) address,
# elements from row to row and from column to column, and bytes of an element; of c address, elements from row to row
# and bytes; the address of a bias (n), or 0; of a mask (m n) address, or 0, and elements from row to row; whether a is
# rectified; where the thread packs, how deep, high and wide its blocks are, and where unfinished sums wait.
M, N, K, ADD, A, A_ROW, A_COLUMN, A_BYTES, B, B_ROW, B_COLUMN, B_BYTES = range(12)
C, C_ROW, C_BYTES, BIAS, MASK, MASK_ROW, RELU, PANELS, DEPTH, HIGH, WIDE, SUMS, FIELDS = range(12, 25)


def _cuts(size: int, step: int, parts: int) -> Array:
    """Where each part begins, and where the last ends: whole tiles for each but the last."""
    return np.minimum(size, -(-size // step) * np.arange(parts + 1) // parts * step)


def row_step(matrix: Array) -> int:
    """Elements from one row to the next."""
    return int(matrix.strides[0]) // matrix.itemsize if len(matrix) > 1 else int(matrix.shape[1])


def plans(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    add: bool,
    grid: tuple[int, int],
    tile: tuple[int, int],
    blocks: tuple[int, int, int],
    panels: tuple[int, int, int],
    bias: Array | None,
    relu: bool = False,
    mask: Array | None = None,
) -> Array:
    """A plan for each rectangle of the grid, (across · down, FIELDS). `panels`: where the first one packs, in bytes how
    far the next one is from there, and how far its sums."""
    (m, n), k, (across, down) = c.shape, a.shape[0 if transpose_a else 1], grid
    rows, columns = _cuts(m, tile[0], down), _cuts(n, tile[1], across)
    top, left = rows[:-1, None], columns[None, :-1]
    a_steps = (1, row_step(a)) if transpose_a else (row_step(a), 1)
    b_steps = (1, row_step(b)) if transpose_b else (row_step(b), 1)
    made = np.zeros((down, across, FIELDS), np.int64)
    made[..., M], made[..., N] = np.diff(rows)[:, None], np.diff(columns)
    made[..., (K, ADD)] = k, add
    made[..., A] = a.ctypes.data + top * a_steps[0] * a.itemsize
    made[..., (A_ROW, A_COLUMN, A_BYTES)] = *a_steps, a.itemsize
    made[..., B] = b.ctypes.data + left * b_steps[1] * b.itemsize
    made[..., (B_ROW, B_COLUMN, B_BYTES)] = *b_steps, b.itemsize
    made[..., C] = c.ctypes.data + (top * row_step(c) + left) * c.itemsize
    made[..., (C_ROW, C_BYTES)] = row_step(c), c.itemsize
    if bias is not None:
        made[..., BIAS] = bias.ctypes.data + left * bias.itemsize
    if mask is not None:
        made[..., MASK] = mask.ctypes.data + (top * row_step(mask) + left) * mask.itemsize
        made[..., MASK_ROW] = row_step(mask)
    made[..., PANELS] = panels[0] + np.arange(down * across).reshape(down, across) * panels[1]
    made[..., SUMS] = made[..., PANELS] + panels[2]
    made[..., (DEPTH, HIGH, WIDE, RELU)] = *blocks, relu
    return made.reshape(down * across, FIELDS)


@instruction(intp(types.uintp), literals=1)
def _field(builder, index, plan):
    place = builder.gep(builder.inttoptr(plan, POINTER), [i64(index)], source_etype=WORD)
    return builder.load(place, typ=WORD)


@inlined
def sizes(plan):
    """m, n, k of a rectangle, and whether it is added to c."""
    return _field(M, plan), _field(N, plan), _field(K, plan), _field(ADD, plan)


@inlined
def factor_a(plan):
    """Of op(a) (m k): address, elements from row to row and from column to column, bytes of an element."""
    return uintp(_field(A, plan)), _field(A_ROW, plan), _field(A_COLUMN, plan), _field(A_BYTES, plan)


@inlined
def factor_b(plan):
    """Of op(b) (k n), the same."""
    return uintp(_field(B, plan)), _field(B_ROW, plan), _field(B_COLUMN, plan), _field(B_BYTES, plan)


@inlined
def result(plan):
    """Of c (m n): address, elements from row to row, bytes of an element; and the address of a bias, or 0."""
    return uintp(_field(C, plan)), _field(C_ROW, plan), _field(C_BYTES, plan), uintp(_field(BIAS, plan))


@inlined
def relu_and_mask(plan):
    """Whether a is rectified; the address of a mask, or 0, and elements from row to row."""
    return _field(RELU, plan), uintp(_field(MASK, plan)), _field(MASK_ROW, plan)


@inlined
def blocks_and_panels(plan):
    """How deep, high and wide blocks are; where the thread packs, and where unfinished sums wait."""
    memory = uintp(_field(PANELS, plan)), uintp(_field(SUMS, plan))
    return _field(DEPTH, plan), _field(HIGH, plan), _field(WIDE, plan), memory[0], memory[1]


@intrinsic
def stack_plan(typing, fields):
    """The address of a plan on the stack of the function that calls, with these fields, a tuple of 64-bit words."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            words = builder.ptrtoint(builder.alloca(ir.ArrayType(WORD, FIELDS)), WORD)
        place = builder.inttoptr(words, POINTER)
        for number in range(FIELDS):
            word = builder.extract_value(arguments[0], number)
            builder.store(word, builder.gep(place, [i64(number)], source_etype=WORD))
        return words

    return types.uintp(fields), generate
