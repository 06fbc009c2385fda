"""Linear on the GPU: the products are cuBLAS's, which adds the bias, and adds where the call adds.

A gradient of the stream may come in float32 where the weights are bfloat16: one pass over it sums the bias's gradient
and leaves the bfloat16 copy that the products read.
"""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

from tapeless.kernels.cuda.chosen import can_choose
from tapeless.kernels.cuda.launch import blocks, launch, numbers, put
from tapeless.kernels.cuda.products import affine, factor, product
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.sums import column_sums
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

COLUMNS = 1024


def takes_gelu(y, x, weight, bias) -> bool:
    """Whether `forward` can make the GELU of y on its way."""
    return bias is not None and y.dtype == x.dtype == weight.dtype == bias.dtype and can_choose(y, x, weight)


def forward(y, x, weight, bias, gelu=None, add=NONE) -> list[Native]:
    """With `gelu`, where it `takes_gelu`, also that of y. It adds to y where an adapter has been there first."""
    if bias is not None and y.dtype == weight.dtype == bias.dtype:
        made: list[Native] = []
        x = factor(x, weight.dtype, made)
        return [*made, *affine(y, x, weight, bias, gelu, "y" in add)]
    runs = product(y, x, weight, "y" in add)
    if bias is not None:
        rows, columns = y.shape
        grid = (rows, blocks(columns, COLUMNS))
        runs.append(launch(_add_bias, grid, y, y.stride(0), bias, columns, COLUMNS=COLUMNS))
    return runs


def backward(dx, dweight, dbias, dy, x, weight, add=NONE) -> list[Native]:
    runs: list[Native] = []
    given, narrow = dy, dy.dtype != weight.dtype and not (dx is None and dweight is None)
    if narrow:
        dy = scratch(dy, *dy.shape, dtype=weight.dtype)
    if dbias is not None:  # first, while nothing has pushed dy out of the cache
        runs += column_sums(dbias, given, "dbias" in add, copy=dy if narrow else None)
    elif narrow:
        runs.append(partial(dy.copy_, given))
    if dweight is not None:
        runs += product(dweight, x.T, dy, "dweight" in add)
    if dx is not None:
        runs += product(dx, dy, weight.T, "dx" in add)
    return runs


@triton.jit
def _add_bias(Y, stride, BIAS, F, COLUMNS: tl.constexpr):
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    put(Y + tl.program_id(0).to(tl.int64) * stride + f, numbers(BIAS + f, f < F), f < F, True)
