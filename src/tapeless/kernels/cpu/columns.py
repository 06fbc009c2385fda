"""Softmax down the columns of a matrix that has few of them: a vector is a row, so nothing is ever added across one.

With few positions attention's scores are such a matrix, a column for every query and a row for every key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import intp, types, uintp

from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.microkernels_float32 import (
    FLOAT,
    INDEX,
    POINTER,
    broadcast,
    declare,
    element_pointer,
    i64,
    load_vector,
    repeat,
)

# exp(r) = 1 + r + r² · (…) for |r| ≤ ln 2 / 2, and log(1 + m) = m − m²/2 + m³ · (…) for 1 + m from √½ to √2: the
# coefficients, from the highest power down.
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
HIGH, LOW = 0.693359375, -2.12194440e-4  # of ln 2: the product of a small integer and the first is exact
LOWEST = -87.33654  # of which the exponential is a normal number


class Vectors:
    """Arithmetic on vectors of floats, instruction by instruction. What is fused says so; nothing is reordered."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.kind, self.whole = ir.VectorType(FLOAT, lanes), ir.VectorType(INDEX, lanes)

    def number(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * self.lanes)

    def integer(self, value: int) -> Any:
        return ir.Constant(self.whole, [value] * self.lanes)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        return self._called("fmuladd", a, b, c)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of two vectors' numbers; NaN where one of them is."""
        return self._called("maximum", a, b, fastmath=("nsz",))

    def _called(self, name: str, *values: Any, fastmath: tuple[str, ...] = ()) -> Any:
        function = declare(self.builder, f"llvm.{name}.v{self.lanes}f32", self.kind, [self.kind] * len(values))
        return self.builder.call(function, values, fastmath=fastmath)

    def _polynomial(self, coefficients: tuple[float, ...], x: Any) -> Any:
        total = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fused(total, x, self.number(coefficient))
        return total

    def exp(self, x: Any) -> Any:
        """As `vector.exp`: for x ≤ 88; 0 below −87.3, NaN for NaN."""
        builder, lowest = self.builder, self.number(LOWEST)
        below = builder.fcmp_ordered("<", x, lowest)
        y = builder.select(below, lowest, x)
        n = self._called("rint", builder.fmul(y, self.number(1.44269504)))
        r = self.fused(n, self.number(-LOW), self.fused(n, self.number(-HIGH), y))
        p = builder.fadd(self.fused(builder.fmul(self._polynomial(EXP, r), r), r, r), self.number(1.0))
        power = builder.shl(builder.add(builder.fptosi(n, self.whole), self.integer(127)), self.integer(23))
        return builder.select(below, self.number(0.0), builder.fmul(p, builder.bitcast(power, self.kind)))

    def log(self, x: Any) -> Any:
        """For normal numbers above 0; NaN for NaN. x = 2ⁿ · (1 + m), and n becomes part of the sum."""
        builder = self.builder
        bits = builder.bitcast(x, self.whole)
        # Whose exponent is n: √½ ≤ 1 + m < √2.
        root = self.integer(0x3F3504F3)
        n = builder.ashr(builder.sub(bits, root), self.integer(23))
        mantissa = builder.bitcast(builder.sub(bits, builder.shl(n, self.integer(23))), self.kind)
        m, power = builder.fsub(mantissa, self.number(1.0)), builder.sitofp(n, self.kind)
        square = builder.fmul(m, m)
        rest = builder.fmul(builder.fmul(self._polynomial(LOG, m), m), square)
        rest = self.fused(square, self.number(-0.5), self.fused(power, self.number(LOW), rest))
        found = self.fused(power, self.number(HIGH), builder.fadd(m, rest))
        return builder.select(builder.fcmp_unordered("uno", x, x), x, found)

    def seen(self, row: Any, before: Any) -> Any:
        """A mask of the columns that see a row: column i sees the rows up to i + before."""
        builder = self.builder
        first = broadcast(builder, builder.trunc(builder.sub(row, before), INDEX), self.whole)
        return builder.icmp_signed(">=", ir.Constant(self.whole, list(range(self.lanes))), first)


@instruction(types.void(intp, uintp, intp, uintp), literals=1)
def softmax_columns(builder, lanes, rows, scores, before, logs):
    """scores (rows lanes) = their softmax, column by column, in place; logs (lanes) = their log-sum-exps. A column sees
    the rows up to its own number + `before`; at least the first."""
    scores, logs = builder.inttoptr(scores, POINTER), builder.inttoptr(logs, POINTER)
    vectors = Vectors(builder, lanes)

    def place(row: Any) -> Any:
        return element_pointer(builder, scores, builder.mul(row, i64(lanes)))

    most, total = _exponentials(vectors, rows, place, before)
    inverse = builder.fdiv(vectors.number(1.0), total)

    def scaled(row: Any, kept: list[Any]) -> list[Any]:
        builder.store(builder.fmul(load_vector(builder, place(row), vectors.kind), inverse), place(row), align=4)
        return []

    repeat(builder, rows, [], scaled)
    builder.store(builder.fadd(most, vectors.log(total)), logs, align=4)


def _exponentials(vectors: Vectors, rows: Any, place: Callable[[Any], Any], before: Any) -> tuple[Any, Any]:
    """The exponentials in the scores' place, 0 where a row is not seen; returns the largest score and the sum of each
    column."""
    builder = vectors.builder

    def largest(row: Any, kept: list[Any]) -> list[Any]:
        score = load_vector(builder, place(row), vectors.kind)
        return [builder.select(vectors.seen(row, before), vectors.larger(kept[0], score), kept[0])]

    (most,) = repeat(builder, rows, [load_vector(builder, place(i64(0)), vectors.kind)], largest)

    def exponential(row: Any, kept: list[Any]) -> list[Any]:
        score = load_vector(builder, place(row), vectors.kind)
        made = vectors.exp(builder.fsub(score, most))
        made = builder.select(vectors.seen(row, before), made, vectors.number(0.0))
        builder.store(made, place(row), align=4)
        return [builder.fadd(kept[0], made)]

    (total,) = repeat(builder, rows, [vectors.number(0.0)], exponential)
    return most, total


@instruction(types.void(intp, uintp, uintp, intp), literals=1)
def softmax_columns_backward(builder, lanes, rows, scores, slopes, before):
    """scores (rows lanes) = their softmax; slopes (rows lanes), the gradients of that softmax, = those of the scores.
    If one row has all of a column's weight, that gradient is exactly 0."""
    scores, slopes = builder.inttoptr(scores, POINTER), builder.inttoptr(slopes, POINTER)
    vectors = Vectors(builder, lanes)
    nothing = vectors.number(0.0)

    def place(row: Any, of: Any = scores) -> Any:
        return element_pointer(builder, of, builder.mul(row, i64(lanes)))

    _, total = _exponentials(vectors, rows, place, before)

    def pulled(row: Any, kept: list[Any]) -> list[Any]:
        weight = load_vector(builder, place(row), vectors.kind)
        slope = load_vector(builder, place(row, slopes), vectors.kind)
        term = builder.select(vectors.seen(row, before), builder.fmul(weight, slope), nothing)
        return [builder.fadd(kept[0], term)]

    (pull,) = repeat(builder, rows, [nothing], pulled)
    pull, inverse = builder.fdiv(pull, total), builder.fdiv(vectors.number(1.0), total)

    def finished(row: Any, kept: list[Any]) -> list[Any]:
        weight = builder.fmul(load_vector(builder, place(row), vectors.kind), inverse)
        slope = load_vector(builder, place(row, slopes), vectors.kind)
        slope = builder.fmul(weight, builder.fsub(slope, pull))
        builder.store(weight, place(row), align=4)
        builder.store(builder.select(vectors.seen(row, before), slope, nothing), place(row, slopes), align=4)
        return []

    repeat(builder, rows, [], finished)
