"""Threads of our own, which share the parts of a kernel's parallel loop.

`outline.py` makes of such a loop a function that runs a range of its parts. Of n threads, the one that calls among
them, each has a range, and what another has not begun yet the caller takes as well, so that a thread that is slow to
wake delays nobody. Two callers at once: the second does all of its parts by itself. Which thread takes a part changes
no bit of it; a loop whose parts pass a sum on is refused.

A thread looks out for work for about a millisecond and then sleeps. Where MKL's products serve, the loops go on the
threads of its OpenMP, because two pools that look out for work take the cores from each other.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import intp, types, uintp
from numba.extending import intrinsic

from tapeless.kernels.cpu.functions import c_function
from tapeless.kernels.cpu.microkernels_float32 import declare
from tapeless.kernels.cpu.outline import PARALLEL_FOR
from tapeless.kernels.cpu.vector import inlined

MOST = 256  # threads
LOOKING = 30_000  # times a thread looks for work before it sleeps: about a millisecond
PATIENCE = 2_000  # times a caller looks whether another is done before it lets other processes have the core
SYMBOL = "tapeless_pool"  # by which the functions below find the words
WORD, STATUS = ir.IntType(64), ir.IntType(32)

# Words of the pool, in lines of 128 bytes, so that nobody waits for a neighbour's: who is in charge; what all only
# read; the loop that is being done; and for each thread what it is told and tells, its lock and what it sleeps on.
LINE = 16
BUSY, ROUND = 0, 1
OTHERS, LOCK, UNLOCK, WAIT, WAKE, YIELD, OPENMP, OMP_RANGE, OMP_NUMBER, OMP_THREADS = range(LINE, LINE + 10)
FUNCTION, VALUES, COUNT, SHARERS = range(2 * LINE, 2 * LINE + 4)
FIRST = 3 * LINE
TOLD, BEGUN, DONE, ASLEEP, MUTEX, SLEEP, OF_EACH = 0, 1, 2, 3, LINE, 2 * LINE, 3 * LINE


@intrinsic
def _pool(typing):
    def generate(context, builder, signature, arguments):
        words = builder.module.globals.get(SYMBOL) or ir.GlobalVariable(builder.module, WORD, SYMBOL)
        return builder.ptrtoint(words, WORD)

    return types.uintp(), generate


def _place(builder: Any, base: Any, index: Any) -> Any:
    return builder.inttoptr(builder.add(base, builder.mul(index, ir.Constant(WORD, 8))), WORD.as_pointer())


@intrinsic
def _seen(typing, base, index):
    """A word as the last thread that wrote it has left it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(builder, *arguments), "seq_cst", 8, typ=WORD)

    return intp(uintp, intp), generate


@intrinsic
def _tell(typing, base, index, value):
    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _place(builder, *arguments[:2]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(uintp, intp, intp), generate


@intrinsic
def _read(typing, base, index):
    """A word that nobody writes meanwhile."""

    def generate(context, builder, signature, arguments):
        return builder.load(_place(builder, *arguments), typ=WORD)

    return intp(uintp, intp), generate


@intrinsic
def _write(typing, base, index, value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _place(builder, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(uintp, intp, intp), generate


@intrinsic
def _taken(typing, base, index, before, after):
    """Whether it was this thread that changed the word."""

    def generate(context, builder, signature, arguments):
        place = _place(builder, *arguments[:2])
        pair = builder.cmpxchg(place, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(uintp, intp, intp, intp), generate


@intrinsic
def _breathe(typing):
    """Between two looks at the same word."""

    def generate(context, builder, signature, arguments):
        if builder.module.triple.startswith("x86_64"):
            builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif builder.module.triple.startswith(("aarch64", "arm64")):
            builder.call(declare(builder, "llvm.aarch64.isb", ir.VoidType(), [STATUS]), [ir.Constant(STATUS, 15)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _call(typing, address, first, second):
    """A function of the system's, of which it does not matter what it returns."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(STATUS, [WORD, WORD])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(uintp, uintp, uintp), generate


@intrinsic
def _run(typing, function, begin, end, values):
    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [WORD] * 3)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(uintp, intp, intp, uintp), generate


@intrinsic
def _asked(typing, address):
    """What a function without arguments returns, an int."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(STATUS, [])
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), []), WORD)

    return intp(uintp), generate


@intrinsic
def _on_openmp(typing, address, function, loop, threads):
    """`GOMP_parallel`, which every OpenMP has: each of its threads calls the function with the loop."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [WORD, WORD, STATUS, STATUS])
        address, function, loop, threads = arguments
        called = builder.inttoptr(address, kind.as_pointer())
        builder.call(called, [function, loop, builder.trunc(threads, STATUS), ir.Constant(STATUS, 0)])
        return context.get_dummy_value()

    return types.void(uintp, uintp, uintp, intp), generate


@intrinsic
def _space(typing):
    """Where the three words of a loop that OpenMP's threads run are noted."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(WORD, 3))
        return builder.ptrtoint(room, WORD)

    return types.uintp(), generate


@inlined
def _run_range(function, values, count, number, threads_for):
    """The range that is this thread's."""
    begin, end = count * number // threads_for, count * (number + 1) // threads_for
    if begin < end:
        _run(uintp(function), intp(begin), intp(end), uintp(values))


@inlined
def _run_range_of(pool, number):
    count, threads_for = _read(pool, intp(COUNT)), _read(pool, intp(SHARERS))
    _run_range(_read(pool, intp(FUNCTION)), _read(pool, intp(VALUES)), count, number, threads_for)


@inlined
def _took(own, told):
    """Whether this thread is the one that does the part which it, or another, was told of."""
    before = _seen(own, intp(BEGUN))
    return before < told and _taken(own, intp(BEGUN), before, told)


@inlined
def _sleep_until_told(pool, own, heard):
    """The lock is held from the last look on, so that nobody can tell unheard."""
    lock = own + uintp(8 * MUTEX)
    _call(uintp(_read(pool, intp(LOCK))), lock, uintp(0))
    _tell(own, intp(ASLEEP), intp(1))
    while _seen(own, intp(TOLD)) == heard:
        _call(uintp(_read(pool, intp(WAIT))), own + uintp(8 * SLEEP), lock)
    _tell(own, intp(ASLEEP), intp(0))
    _call(uintp(_read(pool, intp(UNLOCK))), lock, uintp(0))


@inlined
def _wake(pool, own):
    lock = own + uintp(8 * MUTEX)
    _call(uintp(_read(pool, intp(LOCK))), lock, uintp(0))
    _call(uintp(_read(pool, intp(WAKE))), own + uintp(8 * SLEEP), uintp(0))
    _call(uintp(_read(pool, intp(UNLOCK))), lock, uintp(0))


def work(number):
    """What a thread does, for ever."""
    pool = _pool()
    own = pool + uintp(8 * (FIRST + number * OF_EACH))
    heard, looks = intp(0), 0
    while True:
        told = _seen(own, intp(TOLD))
        if told != heard:
            heard, looks = told, 0
            if _took(own, told):
                _run_range_of(pool, number)
                _tell(own, intp(DONE), told)
        elif looks < LOOKING:
            looks += 1
            _breathe()
        else:
            looks = 0
            _sleep_until_told(pool, own, heard)


def openmp_range(loop):
    """What a thread of OpenMP's does with a loop."""
    pool = _pool()
    number, threads_for = _asked(uintp(_read(pool, intp(OMP_NUMBER)))), _asked(uintp(_read(pool, intp(OMP_THREADS))))
    _run_range(_read(loop, intp(0)), _read(loop, intp(1)), _read(loop, intp(2)), number, threads_for)


def parallel_for(function, values, count, threads):
    """Runs `function(begin, end, values)` on ranges that are all parts from 0 to `count`, on so many threads."""
    pool = _pool()
    openmp = uintp(_seen(pool, intp(OPENMP)))
    if openmp and min(threads, count) > 1:
        loop = _space()
        _write(loop, intp(0), intp(function))
        _write(loop, intp(1), intp(values))
        _write(loop, intp(2), count)
        _on_openmp(openmp, uintp(_read(pool, intp(OMP_RANGE))), loop, min(threads, count))
        return
    others = min(_seen(pool, intp(OTHERS)), threads - 1, count - 1)
    if others < 1 or not _taken(pool, intp(BUSY), intp(0), intp(1)):
        _run(function, intp(0), count, values)
        return
    told = _read(pool, intp(ROUND)) + 1
    _write(pool, intp(ROUND), intp(told))
    _write(pool, intp(FUNCTION), intp(function))
    _write(pool, intp(VALUES), intp(values))
    _write(pool, intp(COUNT), count)
    _write(pool, intp(SHARERS), intp(others + 1))
    for number in range(1, others + 1):
        own = pool + uintp(8 * (FIRST + number * OF_EACH))
        _tell(own, intp(TOLD), intp(told))
        if _seen(own, intp(ASLEEP)):
            _wake(pool, own)
    # Whatever another thread has not begun when the caller comes by, the caller does.
    for number in range(others + 1):
        own = pool + uintp(8 * (FIRST + number * OF_EACH))
        if number == 0 or _took(own, intp(told)):
            _run_range_of(pool, number)
            _tell(own, intp(DONE), intp(told))
    for number in range(1, others + 1):
        own, looks = pool + uintp(8 * (FIRST + number * OF_EACH)), 0
        while _seen(own, intp(DONE)) != told:
            looks += 1
            if looks < PATIENCE:
                _breathe()
            else:
                _call(uintp(_read(pool, intp(YIELD))), uintp(0), uintp(0))
    _tell(pool, intp(BUSY), intp(0))


SYSTEM = {
    LOCK: "pthread_mutex_lock",
    UNLOCK: "pthread_mutex_unlock",
    WAIT: "pthread_cond_wait",
    WAKE: "pthread_cond_signal",
    YIELD: "sched_yield",
}
HAS_BFLOAT16 = sys.platform != "win32"
_made = np.zeros(FIRST + MOST * OF_EACH + LINE, np.int64)
_words = _made[-_made.ctypes.data % (8 * LINE) // 8 :]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_made))  # the threads look at it for as long as there is a process
_starting = threading.Lock()


@cache
def register() -> Any:
    """Compiles `parallel_for`, which the machine code of kernels asks for by name when it is loaded."""
    llvm.add_symbol(SYMBOL, _words.ctypes.data)
    if HAS_BFLOAT16:
        system = ctypes.CDLL(None)
        for place, name in SYSTEM.items():
            _words[place] = _address(system, name)
    called = c_function(types.void(uintp, uintp, intp, intp), parallel_for)
    llvm.add_symbol(PARALLEL_FOR, called.address)
    return called


@cache
def _worker() -> Any:
    register()
    return c_function(types.void(intp), work)


@cache
def _openmp_range() -> int:
    register()
    address: int = c_function(types.void(uintp), openmp_range).address
    return address


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def start(count: int) -> None:
    """As many threads as are wanted, the caller's among them. Where the system gives us fewer, those do the loops."""
    if not HAS_BFLOAT16 or _words[OTHERS] >= count - 1:
        return
    worker = _worker()
    system = ctypes.CDLL(None)
    with _starting:
        for number in range(int(_words[OTHERS]) + 1, min(count, MOST)):
            own = _words[FIRST + number * OF_EACH :][:OF_EACH]
            own[:] = 0
            system.pthread_mutex_init(ctypes.c_void_p(own[MUTEX:].ctypes.data), None)
            system.pthread_cond_init(ctypes.c_void_p(own[SLEEP:].ctypes.data), None)
            # Counted first: an interrupt can come after it has begun, and it must not be begun twice. One that is
            # counted and not there delays nobody.
            _words[OTHERS] = number
            try:
                threading.Thread(target=worker.ctypes, args=(number,), name=f"tapeless-{number}", daemon=True).start()
            except RuntimeError:
                _words[OTHERS] = number - 1
                return


def use_openmp(library: ctypes.CDLL | None) -> None:
    """From here on loops are run by this OpenMP's threads, or by ours."""
    if library is not None:
        _words[OMP_RANGE] = _openmp_range()
        _words[OMP_NUMBER] = _address(library, "omp_get_thread_num")
        _words[OMP_THREADS] = _address(library, "omp_get_num_threads")
    _words[OPENMP] = 0 if library is None else _address(library, "GOMP_parallel")


def _after_fork() -> None:
    """In the child nobody is there but the thread that forked; others may have held the locks."""
    global _starting
    _starting = threading.Lock()
    _words[BUSY] = _words[ROUND] = _words[OTHERS] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
