"""From a Python function to machine code: once serial, once threaded, each only when it is first asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import numba
from numpy.lib.stride_tricks import as_strided

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import blas, pool
from tapeless.kernels.cpu.cache import keep_on_disk, sums_over_parts
from tapeless.kernels.cpu.functions import OPTIONS
from tapeless.kernels.cpu.narrow import is_narrow, type_of
from tapeless.kernels.native import Native

THREADED = 16384  # elements; below, waking the other threads costs more than they save


@dataclass(frozen=True)
class Compiled:
    kernel: str
    seconds: float
    cached: bool  # read from disk, not compiled


# Who wants to know what is being compiled; the command line shows a progress line.
listeners: list[Callable[[str], None]] = []
compiled: list[Compiled] = []


class Bound(partial[None]):
    """A kernel with its arguments, what Numba has made of it for them, and how many threads its work is worth."""

    result: Any
    threads: int


class Kernel:
    """A function whose outer loop is a prange. In its serial form prange is range.

    The two forms need two names: Numba's cache on disk is keyed by name, source and types, *not* by the options,
    and would hand out the one for the other.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @cached_property
    def _serial(self) -> Any:
        return self._form(parallel=False)

    @cached_property
    def _threaded(self) -> Any:
        return self._form(parallel=True)

    def _form(self, parallel: bool) -> Any:
        original = self._function
        clone = FunctionType(
            original.__code__, original.__globals__, original.__name__, original.__defaults__, original.__closure__
        )
        clone.__qualname__ = original.__qualname__ + ("_threaded" if parallel else "_serial")
        clone.__module__ = original.__module__
        form = numba.njit(parallel=parallel, **OPTIONS)(clone)
        keep_on_disk(form, clone)
        return form

    def bind(self, size: int, *arguments: Any, threaded_from: int = THREADED, sharers: int | None = None) -> Native:
        """Compiled for these arguments (or read from the cache), ready to be called with none. `sharers`: threads that
        are wanted, where that is not given by the size."""
        sharers = sharers or blas.sharers(size, threaded_from)
        threaded = sharers > 1 and blas.threads() > 1
        form = self._threaded if threaded else self._serial
        types = tuple(type_of(argument) for argument in arguments)
        if types not in form.overloads:
            name = f"{self._function.__module__.split('.')[-2]}.{self._function.__name__}"
            for listener in listeners:
                listener(name)
            begin, hits = time.perf_counter(), sum(form.stats.cache_hits.values())
            with pool.ours() if threaded else nullcontext():
                form.compile(types)
            if sums_over_parts(form.overloads[types]):
                del form.overloads[types]  # or it would be handed out the next time it is asked for
                raise TapelessError(
                    f"{name} sums over the parts of its prange, and in which order would depend on the threads: let "
                    f"each part write its own sum, and add those up behind the loop."
                )
            cached = sum(form.stats.cache_hits.values()) > hits
            compiled.append(Compiled(name, time.perf_counter() - begin, cached))
        # Numba does not know by itself what an array of bfloat16 is: then what was compiled is called, nothing chosen.
        called = form.overloads[types].entry_point if any(map(is_narrow, arguments)) else form
        run = Bound(called, *arguments)
        run.result, run.threads = form.overloads[types], sharers
        return run


def flat(*arrays: Any) -> tuple[Any, ...]:
    """Contiguous arrays as vectors."""
    return tuple(array.reshape(-1, copy=False) for array in arrays)


def apart(*arrays: Any) -> tuple[Any, ...]:
    """Rows that lie any distance apart (columns of a wider buffer), each array as a vector and that distance. A kernel
    that cuts its rows from the vector sees contiguous memory, which the compiler can vectorise."""
    found: list[Any] = []
    for array in arrays:
        if array is None:
            found += [None, 0]
            continue
        step = array.strides[0] // array.itemsize if len(array) > 1 else array.shape[1]
        span = (len(array) - 1) * step + array.shape[1]
        found += [as_strided(array, (span,), (array.itemsize,)), step]
    return tuple(found)
