"""Statistics of arrays, in one pass: what a recorded step keeps."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba import float32, float64, int32

from tapeless.kernels.cpu.compile import Kernel
from tapeless.kernels.cpu.vector import float_of_bits, plus
from tapeless.kernels.native import Native

INFINITY = 0x7F800000  # the bits of float32's; what lies above them is NaN


def bind_statistics(out, values) -> Native:
    """out (4) = of values (N), in float32: root mean square, fraction of zeros and largest magnitude of those that are
    finite, and how many are not. Always on one thread: memory is what it waits for, and the sum has one order."""
    return STATISTICS.bind(0, out, values, values.view(np.int32))


def measure_sizes(out, x, bits):
    """Magnitudes are compared as whole numbers, whose order is the same and whose maximum vectorises."""
    total, largest, zeros, wrong = 0.0, int32(0), 0, 0
    for i in range(x.size):
        magnitude = bits[i] & int32(0x7FFFFFFF)
        finite = magnitude < int32(INFINITY)
        zeros += magnitude == int32(0)
        wrong += not finite
        largest = max(largest, magnitude if finite else int32(0))
        value = x[i] if finite else float32(0)
        total = plus(total, float64(value) * float64(value))
    count = max(1, x.size - wrong)
    out[0] = sqrt(total / count)
    out[1] = zeros / max(1, x.size)
    out[2] = float_of_bits(largest)
    out[3] = wrong


STATISTICS = Kernel(measure_sizes)


def bind_beside(out, stream, branch) -> Native:
    """out (3) = the root mean square of a branch (N), that of the residual stream it joins (N), and their cosine."""
    return BESIDE.bind(0, out, stream, branch)


def beside(out, stream, branch):
    own, other, both = 0.0, 0.0, 0.0
    for i in range(stream.size):
        there, joins = float64(stream[i]), float64(branch[i])
        own = plus(own, there * there)
        other = plus(other, joins * joins)
        both = plus(both, there * joins)
    count = max(1, stream.size)
    lengths = sqrt(own) * sqrt(other)
    out[0] = sqrt(other / count)
    out[1] = sqrt(own / count)
    out[2] = both / lengths if lengths != 0 else 0.0


BESIDE = Kernel(beside)
