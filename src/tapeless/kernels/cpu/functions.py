"""Functions as Numba compiles them for kernels, kept on disk: called from Python, or from machine code by address."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numba
import numpy as np

from tapeless.errors import TapelessError
from tapeless.kernels.cpu.cache import KernelCache, keep_on_disk
from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.numba_internals import CFunc
from tapeless.kernels.cpu.outline import OPTIONS
from tapeless.kernels.cpu.uninterrupted import uninterrupted

WORD = ir.IntType(64)


@dataclass(frozen=True)
class Compiled:
    kernel: str
    seconds: float
    cached: bool  # read from disk, not compiled


compilations: list[Compiled] = []


@contextmanager
def timed(title: str, hits: Callable[[], int]) -> Iterator[None]:
    """Note how long it takes to compile a function meanwhile. `hits`: how often one has been read from disk."""
    begin, before = time.perf_counter(), hits()
    yield
    compilations.append(Compiled(title, time.perf_counter() - begin, hits() > before))


def title_of(function: Callable[..., Any]) -> str:
    return ".".join((*function.__module__.split(".")[-2:-1], function.__name__))


def jitted(function: Any) -> Any:
    """A function to call from Python. Numba compiles it for the types of its arguments."""
    form = numba.njit(**OPTIONS)(function)
    keep_on_disk(form, function)
    return form


class CFunction:
    """A function with C's calling convention, for kernels, libraries and threads that know its address."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Any,
        symbol: str | None = None,
        calls: CFunction | None = None,
    ) -> None:
        """`symbol`: the name under which machine code finds a word with its address (`calling`). `calls`: another one
        that it calls in this way."""
        self.function = function
        self.signature = signature
        self._calls = calls
        self._form: Any = None
        self._word = np.zeros(1, np.int64)
        if symbol is not None:
            llvm.add_symbol(symbol, self._word.ctypes.data)

    def _made(self) -> Any:
        form = CFunc(self.function, (self.signature.args, self.signature.return_type), {}, OPTIONS)
        keep_on_disk(form, self.function)
        return form

    def compiled_for(self, types: tuple[Any, ...] = ()) -> Any:
        """The function as machine code, from disk where it is there. Its types are those of its signature."""
        if self._form is None:
            form = self._made()
            with timed(title_of(self.function), lambda: form._cache_hits):
                form.compile()
            self._word[0] = form.address
            self._form = form
        return self._form

    def is_there(self, types: tuple[Any, ...] = ()) -> bool:
        if self._form is not None:
            return True
        cache = self._made()._cache
        return isinstance(cache, KernelCache) and cache.has(self.signature)

    def _get(self) -> Any:
        """The compiled function. If missing ones are collected, and it is one of those, None."""
        if self._calls is not None:
            self._calls._get()
        return None if self._form is None and postponed(self, ()) else self.ready()

    def ready(self) -> Any:
        """The compiled function."""
        return self._form or uninterrupted(self.compiled_for)

    @property
    def address(self) -> int:
        form = self._get()
        return 0 if form is None else int(form.address)

    @property
    def ctypes(self) -> Any:
        form = self._get()
        return not_compiled if form is None else form.ctypes


def calling(symbol: str, signature: Any) -> Any:
    """An instruction that calls the rectangle of a GEMM, the `CFunction` with this symbol. Neither that nor what calls
    it has to be compiled first."""

    def call(builder: Any, plan: Any, alpha: Any) -> None:
        word = builder.module.globals.get(symbol) or ir.GlobalVariable(builder.module, WORD, symbol)
        kind = ir.FunctionType(ir.VoidType(), [plan.type, alpha.type])
        builder.call(builder.inttoptr(builder.load(word, typ=WORD), kind.as_pointer()), [plan, alpha])

    return instruction(signature)(call)


_local = threading.local()
Missing = tuple[Any, tuple[Any, ...]]  # a Kernel or a CFunction, and types


@contextmanager
def collecting() -> Iterator[dict[Missing, None]]:
    """List what this thread asks for meanwhile that is neither compiled nor on disk."""
    before = getattr(_local, "missing", None)
    _local.missing = {}
    try:
        yield _local.missing
    finally:
        _local.missing = before


def postponed(function: Any, types: tuple[Any, ...]) -> bool:
    """Whether missing ones are collected, and this is one of them."""
    missing = getattr(_local, "missing", None)
    if missing is None or uninterrupted(partial(function.is_there, types)):
        return False
    missing[function, types] = None
    return True


def not_compiled(*arguments: Any) -> None:
    raise TapelessError("a kernel was called that has only been asked for")
