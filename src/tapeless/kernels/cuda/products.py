"""Matrix products, which are cuBLAS's. They accumulate in float32 whatever the type of their factors, and where the
result is wider than the factors it is rounded to its own type alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tapeless.kernels.cuda.chosen import Chosen, can_choose
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native


@contextmanager
def exact() -> Iterator[None]:
    """No product is rounded on its way: float32 is not cut to TensorFloat-32, and the parts of a long sum are not added
    in bfloat16. torch looks at these settings when a product runs or is captured."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32, settings.allow_bf16_reduced_precision_reduction
    settings.allow_tf32, settings.allow_bf16_reduced_precision_reduction = False, False
    try:
        yield
    finally:
        settings.allow_tf32, settings.allow_bf16_reduced_precision_reduction = before


def product(out, a, b, add: bool = False, times: float = 1.0) -> list[Native]:
    """out (+)= times · a @ b. Factors of two types are multiplied in the narrower."""
    narrow = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    runs: list[Native] = []
    a, b = (factor(x, narrow, runs) for x in (a, b))
    if can_choose(out, a, b):
        return [*runs, Chosen(out, a, b, add=add, times=times)]
    if out.dtype != narrow:
        wide = torch.ops.aten.addmm.dtype_out
        options = {"out": out, "beta": float(add), "alpha": times}
        return [*runs, partial(wide, out, a, b, out.dtype, **options)]
    if add or times != 1:
        return [*runs, partial(torch.addmm, out, a, b, beta=float(add), alpha=times, out=out)]
    return [*runs, partial(torch.mm, a, b, out=out)]


def affine(out, a, b, bias, gelu=None, add: bool = False) -> list[Native]:
    """out (+)= a @ b + bias, all of one type. `gelu`, which only may be given where `can_choose`, and not where it
    adds, becomes that of out."""
    if can_choose(out, a, b):
        return [Chosen(out, a, b, bias, add=add) if gelu is None else Chosen(gelu, a, b, bias, before=out)]
    if add:
        return [partial(out.add_, bias), partial(torch.addmm, out, a, b, out=out)]
    return [partial(torch.addmm, bias, a, b, out=out)]


def factor(x, dtype, runs: list[Native]):
    """x in this type: itself, or a copy that the runs make first."""
    if x.dtype == dtype:
        return x
    copy = scratch(x, *x.shape, dtype=dtype)
    runs.append(partial(copy.copy_, x))
    return copy
