"""What the CPU kernels are written with: an exp that the compiler can vectorise, and sums and a maximum that it can.

Arithmetic is done as it is written: products and quotients keep their grouping, because another one overflows where
this one does not (x · (e · s) is 0 where (x · e) · s is infinite). The compiler may only fuse a multiplication with an
addition (EXACT). What it may reorder is the additions of a sum, so that they can be split over vector lanes, and each
of them says so: `total = plus(total, term)`. NaN and infinity keep their meaning everywhere.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import float32, int32, njit

from tapeless.kernels.cpu.helpers import EXACT, HELPER
from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.numba_internals import config


def whole_registers(configured: str | None, host: dict[str, bool]) -> str | None:
    """The features to compile for, if Numba is not configured for any. LLVM uses half of a vector register on Intel's
    processors, because the first that had 512 bits were slowed by them; those that multiply bfloat16 are not."""
    if configured is not None or not host.get("avx512bf16"):
        return configured
    return ",".join([*(f"{'+' if there else '-'}{name}" for name, there in sorted(host.items())), "-prefer-256-bit"])


# Numba asks once, when the first function is made that it may compile.
config.CPU_FEATURES = whole_registers(config.CPU_FEATURES, llvm.get_host_cpu_features())

# What kernels are made of is inlined into them. Otherwise a kernel read from the cache calls the copy that was saved
# with it, one just compiled calls the original, the two are optimised apart, and sums come out in another order.
inlined = njit(fastmath=EXACT, **HELPER)


@njit(fastmath={"reassoc", "nsz", "contract"}, **HELPER)
def plus(total, term):
    """One addition of a sum whose order is free. On nothing else is reordering allowed."""
    return total + term


@njit(fastmath=False, **HELPER)  # said, because what is not said is inherited from the kernel
def rounded_product(a, b):
    """Never fused with an addition: two equal products differ by 0, not by what one of them was rounded by."""
    return a * b


@instruction(float32(float32, float32, float32))
def fused(builder, a, b, c):
    """a · b + c with one rounding, where the machine can, whatever else a · b is used for."""
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
    return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [ir.FloatType()], kind), [a, b, c])


@instruction(float32(int32))
def float_of_bits(builder, bits):
    """The float with these bits."""
    return builder.bitcast(bits, ir.FloatType())


@instruction(float32(float32))
def nearest(builder, x):
    """The nearest integer, as a float: llvm.rint vectorises, Python's round does not."""
    return builder.call(builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()]), [x])


@instruction(float32(float32, float32))
def larger(builder, a, b):
    """The larger of two; NaN if one is NaN. Unlike a comparison it vectorises as a reduction."""
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), ir.FloatType()])
    function = builder.module.declare_intrinsic("llvm.maximum", [ir.FloatType()], kind)
    return builder.call(function, [a, b], fastmath=("nsz",))  # which of two zeros is larger costs more to tell


@inlined
def exp(x):
    """exp for x ≤ 88; 0 below −87.3, NaN for NaN.

    exp(x) = 2ⁿ · exp(r) with n = round(x / ln 2) and |r| ≤ ln 2 / 2; ln 2 is subtracted in two parts, so that r is
    exact, exp(r) is a polynomial, and 2ⁿ is n put into the exponent's bits.
    """
    low = float32(-87.33654)
    y = low if x < low else x
    n = nearest(y * float32(1.44269504))
    r = y - n * float32(0.693359375)
    r = r + n * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = (p * r) * r + r + float32(1.0)
    power = float_of_bits((int32(n) + int32(127)) << int32(23))
    return float32(0.0) if x < low else p * power


@inlined
def largest(row):
    """The largest of a row (N); NaN if one is NaN."""
    most = row[0]
    for i in range(row.size):
        most = larger(most, row[i])
    return most
