"""The CPU backend: a BLAS for the products, Numba for everything else, in float32.

An op's `cpu.py` has the functions of its `reference.py`, with the same arguments. But where those compute, these
*bind*: they decide everything that can be decided (which kernel, how many threads, where the scratch lies) and return
the native calls that compute the result, each without arguments.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tapeless.backends.execute import Run
from tapeless.errors import TapelessError
from tapeless.program.call import Call

DEFAULT_PRECISION = "float32"
PRECISIONS = ("float32",)

if find_spec("numba") is None:
    raise TapelessError("the cpu backend needs Numba: pip install 'tapeless[cpu]', or take backend='reference'.")


def bind(call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Run]:
    from tapeless.kernels.cpu import blas

    blas.threads()  # the thread pools are settled before the first kernel compiles
    if find_spec(f"tapeless.ops.{call.op}.cpu") is None:
        raise _missing(call)
    binder = getattr(import_module(f"tapeless.ops.{call.op}.cpu"), call.direction, None)
    if binder is None:
        raise _missing(call)
    runs: list[Run] = binder(*arguments, **options)
    products = [run for run in runs if isinstance(run, blas.Product)]
    small = products and all(product.flops < blas.THREADED for product in products)
    return blas.alone(blas.on_one_thread(runs) if small else runs)


def begin() -> list[Run]:
    """What comes before the first call of a list, each time it runs."""
    from tapeless.kernels.cpu import blas

    return [partial(blas.refuse_after_fork, blas.threads())]


def _missing(call: Call) -> TapelessError:
    return TapelessError(
        f"{call.op} has no {call.direction} on the cpu backend: write it in ops/{call.op}/cpu.py, "
        f"or take backend='reference'."
    )
