"""The only door of the CPU kernels: what other packages import from `tapeless.kernels.cpu`, and nothing behind it.

| for | names |
|---|---|
| threads | `threads`, `set_threads`, `checked_threads`, `cores`, `start_threads` |
| matrix multiplication | `gemm`, `gemm_scratch`; `gemm_library`, `set_gemm_library`, `using_gemm_library`, `mkl` |
| running | `load` a module that needs Numba, `compile_all` kernels on all cores, `run_list` |
| writing a kernel | `Kernel` compiles a function with a `prange`; `language.py` lists what its body calls |

Importing this needs NumPy alone. What needs Numba is loaded when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from tapeless.kernels.cpu.dispatch import (
    A_BFLOAT16,
    B_BFLOAT16,
    GEMM_LIBRARIES,
    NOT_TRANSPOSED,
    ROW_MAJOR,
    TRANSPOSED,
    Gemm,
    checked_threads,
    cores,
    gemm,
    gemm_address,
    gemm_library,
    gemm_version,
    mkl,
    on_one_thread,
    set_gemm_library,
    set_threads,
    small_on_one_thread,
    start_threads,
    threads,
    using_gemm_library,
    using_threads,
)
from tapeless.kernels.cpu.sizes import block_count, gemm_scratch, part_count, worker_count
from tapeless.kernels.cpu.uninterrupted import load
from tapeless.kernels.native import Native

T = TypeVar("T")


def compile_all(bind: Callable[[], T]) -> T:
    """Return what `bind` returns, after the kernels that it binds have been compiled on all cores."""
    bound: T = load("tapeless.kernels.cpu.precompile").compile_all(bind)
    return bound


def run_list(natives: list[Native]) -> Native:
    """Native calls as one, which runs them in this order."""
    called: Native = load("tapeless.kernels.cpu.call_list").CallList(natives)
    return called


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16."""
    return bool(load("tapeless.kernels.cpu.gemm_bfloat16").HAS_BFLOAT16)


if TYPE_CHECKING:
    from tapeless.kernels.cpu.language import *
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_") or find_spec(f"{__name__}.{name}"):  # a module behind the door
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.language"), name)
