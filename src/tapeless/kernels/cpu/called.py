"""A product inside a kernel: called where it lies, be it MKL's or our own."""

from __future__ import annotations

import llvmlite.ir as ir
from numba import float32, intp, types, uintp
from numba.extending import intrinsic

ARGUMENTS = (intp, intp, intp, intp, intp, intp, float32, uintp, intp, uintp, intp, float32, uintp, intp)


@intrinsic
def sgemm(typing, address, order, turn_a, turn_b, m, n, k, alpha, a, a_row, b, b_row, beta, c, c_row):
    """What `blas.sgemm_address` tells is an argument of the kernel, no part of it: the machine code on disk is that for
    any product."""

    def generate(context, builder, signature, arguments):
        kinds = [context.get_value_type(each) for each in ARGUMENTS]
        function = ir.FunctionType(ir.VoidType(), kinds)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(uintp, *ARGUMENTS), generate
