"""Compiling a Python function to machine code, when it is first bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from numba import intp
from numpy.lib.stride_tricks import as_strided

from tapeless.kernels.cpu import dispatch, pool
from tapeless.kernels.cpu.bfloat16 import is_bfloat16, type_of
from tapeless.kernels.cpu.cache import KernelCache
from tapeless.kernels.cpu.functions import jitted, not_compiled, postponed, timed, title_of
from tapeless.kernels.cpu.outline import outlined
from tapeless.kernels.cpu.uninterrupted import uninterrupted
from tapeless.kernels.native import Native

THREADED = 16384  # elements; below, waking the other threads costs more than they save


# Called with how many of how many kernels are compiled; the command line shows a progress bar.
progress_listeners: list[Callable[[int, int], None]] = []


def progress(done: int, total: int) -> None:
    for listener in progress_listeners:
        listener(done, total)


class BoundKernel(partial[None]):
    """A kernel with its arguments: what Numba compiled for them, and how many threads it runs on."""

    function: Callable[..., None]  # as it is written
    threads: int
    result: Any


class Kernel:
    """A function, most often with a `prange`, as machine code that runs on any number of threads."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    @cached_property
    def _form(self) -> Any:
        return self._made()

    def _made(self) -> Any:
        return jitted(outlined(self.function))

    def compiled_for(self, types: tuple[Any, ...]) -> Any:
        """Numba's dispatcher with machine code for arguments of these types, from disk where it is there."""
        form = self._form
        if types not in form.overloads:
            pool.register()
            with timed(title_of(self.function), lambda: sum(form.stats.cache_hits.values())):
                form.compile(types)
        return form

    def is_there(self, types: tuple[Any, ...]) -> bool:
        cache = self._form._cache
        return types in self._form.overloads or (isinstance(cache, KernelCache) and cache.has(types))

    def bind(self, size: int, *arguments: Any, threaded_from: int = THREADED, threads: int | None = None) -> Native:
        """Compile for these arguments, or read from the cache; returns a call without arguments. `size`: elements of
        work, from which the thread count follows, unless `threads` gives it."""
        threads = threads or dispatch.threads_for(size, threaded_from)
        types = (*(type_of(argument) for argument in arguments), intp)
        form = self.__dict__.get("_form")
        if form is None or types not in form.overloads:
            if postponed(self, types):
                return not_compiled
            form = uninterrupted(partial(self.compiled_for, types))
        if threads > 1:
            dispatch.settle_loops()
        # Numba does not know by itself what an array of bfloat16 is: then what was compiled is called, nothing chosen.
        called = form.overloads[types].entry_point if any(map(is_bfloat16, arguments)) else form
        run = BoundKernel(called, *arguments, threads)
        run.function, run.threads, run.result = self.function, threads, form.overloads[types]
        return run


def flat(*arrays: Any) -> tuple[Any, ...]:
    """Contiguous arrays as vectors."""
    return tuple(array.reshape(-1, copy=False) for array in arrays)


def strided(*arrays: Any) -> tuple[Any, ...]:
    """Each array (R C), whose rows may be columns of a larger buffer, as a vector and the elements from row to row. A
    kernel that cuts its rows from the vector sees contiguous memory, which the compiler can vectorise."""
    found: list[Any] = []
    for array in arrays:
        if array is None:
            found += [None, 0]
            continue
        step = array.strides[0] // array.itemsize if len(array) > 1 else array.shape[1]
        span = (len(array) - 1) * step + array.shape[1]
        found += [as_strided(array, (span,), (array.itemsize,)), step]
    return tuple(found)
