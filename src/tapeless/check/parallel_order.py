"""Whether the parts of a parallel loop meet, found out without threads, so that it does not hang on who is faster.

A kernel is compiled once more with its `prange` in the place of which stands an order that is chosen anew for each run:
forwards, backwards, shuffled, or some of the parts alone. If the parts have nothing to do with one another, the order
makes no difference, not in the last bit; and no two parts write to the same place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types

from tapeless.kernels.cpu import BoundKernel, jitted
from tapeless.kernels.native import Native
from tapeless.ops.contract import Array

Order = Callable[[int], Array]  # from how many parts a loop has to which of them run, one after the other

# Named, not a number, for the cache on disk: linked when it is loaded.
SYMBOL = "tapeless_order"
_fill = types.ExternalFunction(SYMBOL, types.int64(types.uintp, types.int64))
_order: Order = np.arange


def _write_order(address: int, parts: int) -> int:
    chosen = _order(parts)
    room = (ctypes.c_int64 * parts).from_address(address)
    room[: len(chosen)] = chosen.tolist()
    return len(chosen)


_callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(_write_order)


@numba.njit(no_cpython_wrapper=True)  # type: ignore[untyped-decorator]
def in_order(parts: int) -> Array:
    room = np.empty(parts, np.int64)
    return room[: _fill(types.uintp(room.ctypes.data), types.int64(parts))]


ORDERS: dict[str, Order] = {
    "forwards": np.arange,
    "backwards": lambda parts: np.arange(parts)[::-1],
    "shuffled": lambda parts: np.random.default_rng(parts).permutation(parts),
    "none": lambda parts: np.arange(0),
    "even": lambda parts: np.arange(0, parts, 2),
    "odd": lambda parts: np.arange(1, parts, 2),
}


def is_parallel(run: Native) -> bool:
    """A compiled kernel with a parallel loop in it."""
    return isinstance(run, BoundKernel) and "prange" in run.function.__code__.co_names


def run_in(order: str, runs: list[Native]) -> None:
    global _order
    _order = ORDERS[order]
    try:
        for run in runs:
            (_in_order(run) if is_parallel(run) else run)()
    finally:
        _order = np.arange


def _in_order(run: Any) -> Native:
    return partial(_form(run.function), *run.args[:-1])


@cache
def _form(function: Any) -> Any:
    llvm.add_symbol(SYMBOL, ctypes.cast(_callback, ctypes.c_void_p).value)
    scope = {**function.__globals__, "prange": in_order}
    clone = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    clone.__qualname__, clone.__module__ = f"{function.__name__}_in_order", function.__module__
    return jitted(clone)


def collisions(run: Any, names: dict[int, str]) -> Iterator[str]:
    """The arrays of a kernel in which two parts of its loop write to the same place. What it writes outside the loop
    does not count. `names`: of the arrays by their address; the others are scratch, and hold nothing."""
    arrays = [array for array in run.args if isinstance(array, np.ndarray) and array.flags.writeable]
    for array in arrays:
        if array.ctypes.data not in names and array.dtype.kind == "f":
            array[...] = np.nan
    before = [array.copy() for array in arrays]
    changed = []
    for order in ("none", "even", "odd"):
        run_in(order, [run])
        changed.append([_bits(array) != _bits(was) for array, was in zip(arrays, before, strict=True)])
        for array, was in zip(arrays, before, strict=True):
            array[...] = was
    for array, outside, some, others in zip(arrays, *changed, strict=True):
        if (some & others & ~outside).any():
            yield names.get(array.ctypes.data, "its scratch")


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
