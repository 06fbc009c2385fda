"""bfloat16 for Numba, which has no such type: what is read from an array of it is upcast to float32, and what is
written to it is rounded. A kernel that is written for float32 serves both, and computes in float32.

In memory it is 16 bits, in a register a float32: the upcast is a shift, and the rounding, to the nearest and of two
equally near to the even one, happens where a number is stored.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, models, register_model

from tapeless.kernels.cpu.numba_internals import Conversion, lower_cast

HALF, WORD, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


class BFloat16(types.Hashable):  # type: ignore[misc]
    """No number to Numba, which would ask NumPy what it is; but it becomes a float32 wherever one is needed."""

    def __init__(self) -> None:
        super().__init__("bfloat16")

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return {types.float32: Conversion.promote, types.float64: Conversion.safe}.get(other)

    def can_convert_from(self, context: Any, other: Any) -> Any:
        return Conversion.unsafe if isinstance(other, types.Float | types.Integer) else None

    def unify(self, context: Any, other: Any) -> Any:
        return context.unify_pairs(types.float32, other) if isinstance(other, types.Float | types.Integer) else None


BFLOAT16 = BFloat16()


@register_model(BFloat16)
class BFloat16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOAT)

    def get_data_type(self) -> Any:
        return HALF

    def as_data(self, builder: Any, value: Any) -> Any:
        return emit_rounded(builder, value)

    def from_data(self, builder: Any, value: Any) -> Any:
        return emit_upcast(builder, value)


def emit_rounded(builder: Any, value: Any) -> Any:
    """Emit the rounding of a float32, or a vector of them, to bfloat16. NaN stays NaN."""
    lanes = getattr(value.type, "count", None)
    words, halves = (WORD, HALF) if lanes is None else (ir.VectorType(WORD, lanes), ir.VectorType(HALF, lanes))

    def number(value: int) -> Any:
        return ir.Constant(words, value if lanes is None else [value] * lanes)

    bits = builder.bitcast(value, words)
    upper = builder.lshr(bits, number(16))
    near = builder.add(bits, builder.add(builder.and_(upper, number(1)), number(0x7FFF)))
    unordered = builder.fcmp_unordered("uno", value, value)
    kept = builder.select(unordered, builder.or_(upper, number(0x40)), builder.lshr(near, number(16)))
    return builder.trunc(kept, halves)


def emit_upcast(builder: Any, value: Any) -> Any:
    """Emit the upcast of a bfloat16, or a vector of them, to float32."""
    lanes = getattr(value.type, "count", None)
    words, floats = (WORD, FLOAT) if lanes is None else (ir.VectorType(WORD, lanes), ir.VectorType(FLOAT, lanes))
    sixteen = ir.Constant(words, 16 if lanes is None else [16] * lanes)
    return builder.bitcast(builder.shl(builder.zext(value, words), sixteen), floats)


@lower_cast(BFloat16, types.Float)
def bfloat16_to_float(context: Any, builder: Any, kind: Any, to: Any, value: Any) -> Any:
    return context.cast(builder, value, types.float32, to)


@lower_cast(types.Float, BFloat16)
@lower_cast(types.Integer, BFloat16)
def number_to_bfloat16(context: Any, builder: Any, kind: Any, to: Any, value: Any) -> Any:
    return context.cast(builder, value, kind, types.float32)


@intrinsic
def upcast(typing: Any, value: Any) -> Any:
    """A number as float32, where the context does not ask for one: `float64(upcast(x[i]))`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return types.float32(types.float32), generate


def is_bfloat16(value: Any) -> bool:
    """Whether it is an array of ml_dtypes' bfloat16."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "V"


def type_of(value: Any) -> Any:
    """Numba's type of an argument."""
    if not is_bfloat16(value):
        return numba.typeof(value)
    layout = "C" if value.flags.c_contiguous else "A"
    return types.Array(BFLOAT16, value.ndim, layout, readonly=not value.flags.writeable)
