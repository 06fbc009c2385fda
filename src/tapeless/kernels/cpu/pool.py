"""Threads of our own, which share the parts of a kernel's parallel loop.

Numba hands a loop that is divided into parts to whoever is called `numba_parallel_for`. The layers that come with it
are no good fit: OpenMP's is not there on every machine, dies in a forked child, and is one of several in a process with
PyTorch; `workqueue` ends a process in which two threads call it at once, and lets threads fall asleep between any two
loops. Here the thread that calls is number 0; of n threads, each takes every nth part from its number on, and what
another has not begun yet the caller takes as well, so that a thread that is slow to wake delays nobody. Two callers at
once: the second does all of its parts by itself. Which thread takes a part changes no bit of it; a loop that sums over
its parts, which Numba would do by the numbers of its own layer's threads, is refused (`compile.py`).

A thread looks out for work for about a millisecond and then sleeps. Where MKL's products serve, the loops go on the
threads of its OpenMP, because two pools that look out for work take the cores from each other.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import intp, types, uintp
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic
from numba.np.ufunc.parallel import _launch_threads

from tapeless.kernels.cpu.functions import compiled_function
from tapeless.kernels.cpu.tiles import declared
from tapeless.kernels.cpu.vector import inlined

MOST = 256  # threads
SPACE = 4096 // 8  # words on a thread's stack for its part's arguments and sizes, of either
LOOKING = 30_000  # times a thread looks for work before it sleeps: about a millisecond
PATIENCE = 2_000  # times a caller looks whether another is done before it lets other processes have the core
SYMBOL = "tapeless_pool"  # by which the functions below find the words
PARALLEL_FOR = "numba_parallel_for"
WORD, STATUS = ir.IntType(64), ir.IntType(32)

# Words of the pool, in lines of 128 bytes, so that nobody waits for a neighbour's: who is in charge; what all only
# read; the loop that is being done; and for each thread what it is told and tells, its lock and what it sleeps on.
LINE = 16
BUSY, ROUND = 0, 1
OTHERS, WANTED, DELEGATE, LOCK, UNLOCK, WAIT, WAKE, YIELD = range(LINE, LINE + 8)
FUNCTION, ARGUMENTS, SIZES, STEPS, DATA, SIZE_COUNT, ARGUMENT_COUNT, SHARERS = range(2 * LINE, 2 * LINE + 8)
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
            builder.call(declared(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif builder.module.triple.startswith(("aarch64", "arm64")):
            builder.call(declared(builder, "llvm.aarch64.isb", ir.VoidType(), [STATUS]), [ir.Constant(STATUS, 15)])
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
def _do(typing, function, arguments, sizes, steps, data):
    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [WORD] * 4)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(uintp, uintp, uintp, uintp, uintp), generate


@intrinsic
def _hand_on(typing, to, function, arguments, sizes, steps, data, size_count, argument_count, threads):
    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [WORD] * 8)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[uintp] * 6, intp, intp, intp), generate


@intrinsic
def _space(typing):
    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(WORD, SPACE))
        return builder.ptrtoint(room, WORD)

    return types.uintp(), generate


@inlined
def _do_parts(pool, first, arguments, sizes):
    """Every so-manieth from the first on, one at a time. Of its arguments each lies so many steps further."""
    given, steps = uintp(_read(pool, intp(ARGUMENTS))), uintp(_read(pool, intp(STEPS)))
    given_sizes = uintp(_read(pool, intp(SIZES)))
    _write(sizes, intp(0), intp(1))
    for i in range(1, _read(pool, intp(SIZE_COUNT)) + 1):
        _write(sizes, intp(i), _read(given_sizes, intp(i)))
    for part in range(first, _read(given_sizes, intp(0)), _read(pool, intp(SHARERS))):
        for i in range(_read(pool, intp(ARGUMENT_COUNT))):
            _write(arguments, intp(i), intp(_read(given, intp(i)) + part * _read(steps, intp(i))))
        _do(uintp(_read(pool, intp(FUNCTION))), arguments, sizes, steps, uintp(_read(pool, intp(DATA))))


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
    own, arguments, sizes = pool + uintp(8 * (FIRST + number * OF_EACH)), _space(), _space()
    heard, looks = intp(0), 0
    while True:
        told = _seen(own, intp(TOLD))
        if told != heard:
            heard, looks = told, 0
            if _took(own, told):
                _do_parts(pool, number, arguments, sizes)
                _tell(own, intp(DONE), told)
        elif looks < LOOKING:
            looks += 1
            _breathe()
        else:
            looks = 0
            _sleep_until_told(pool, own, heard)


def parallel_for(function, arguments, sizes, steps, data, size_count, argument_count, threads):
    """As Numba calls it. The first of the sizes is the number of parts."""
    pool = _pool()
    delegate = uintp(_seen(pool, intp(DELEGATE)))
    if delegate:
        _hand_on(delegate, function, arguments, sizes, steps, data, size_count, argument_count, threads)
        return
    parts, others = _read(sizes, intp(0)), min(_seen(pool, intp(OTHERS)), _seen(pool, intp(WANTED)))
    fits = size_count < SPACE and argument_count <= SPACE
    if parts < 2 or others < 1 or not fits or not _taken(pool, intp(BUSY), intp(0), intp(1)):
        _do(function, arguments, sizes, steps, data)
        return
    told, others = _read(pool, intp(ROUND)) + 1, min(others, parts - 1)
    _write(pool, intp(ROUND), intp(told))
    _write(pool, intp(FUNCTION), intp(function))
    _write(pool, intp(ARGUMENTS), intp(arguments))
    _write(pool, intp(SIZES), intp(sizes))
    _write(pool, intp(STEPS), intp(steps))
    _write(pool, intp(DATA), intp(data))
    _write(pool, intp(SIZE_COUNT), size_count)
    _write(pool, intp(ARGUMENT_COUNT), argument_count)
    _write(pool, intp(SHARERS), intp(others + 1))
    for number in range(1, others + 1):
        own = pool + uintp(8 * (FIRST + number * OF_EACH))
        _tell(own, intp(TOLD), intp(told))
        if _seen(own, intp(ASLEEP)):
            _wake(pool, own)
    own_arguments, own_sizes = _space(), _space()
    _do_parts(pool, 0, own_arguments, own_sizes)
    for number in range(1, others + 1):
        own = pool + uintp(8 * (FIRST + number * OF_EACH))
        if _took(own, intp(told)):
            _do_parts(pool, number, own_arguments, own_sizes)
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
    LOCK: "pthread_mutex_lock", UNLOCK: "pthread_mutex_unlock", WAIT: "pthread_cond_wait", WAKE: "pthread_cond_signal",
    YIELD: "sched_yield",
}  # fmt: skip
THERE = sys.platform != "win32"
_made = np.zeros(FIRST + MOST * OF_EACH + LINE, np.int64)
_words = _made[-_made.ctypes.data % (8 * LINE) // 8 :]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_made))  # the threads look at it for as long as there is a process
_starting = threading.Lock()


@cache
def _functions() -> tuple[Any, Any]:
    """What Numba calls, and what a thread does."""
    llvm.add_symbol(SYMBOL, _words.ctypes.data)
    system = ctypes.CDLL(None)
    for place, name in SYSTEM.items():
        _words[place] = ctypes.cast(getattr(system, name), ctypes.c_void_p).value or 0
    called = compiled_function(types.void(*[uintp] * 5, intp, intp, intp), parallel_for)
    return called, compiled_function(types.void(intp), work)


_numbas_own = 0


def _numbas() -> int:
    """Who does the loops of others: asked once, before the name first means us."""
    global _numbas_own
    with _starting:
        if not _numbas_own:
            _launch_threads()  # which settles it, where nobody has yet
            _numbas_own = llvm.address_of_symbol(PARALLEL_FOR)
        return _numbas_own


@contextmanager
def ours() -> Iterator[None]:
    """Parallel loops that are compiled meanwhile, or read from disk, are done by us; everybody else's as before."""
    if not THERE:
        yield
        return
    with global_compiler_lock:
        called, _ = _functions()
        others = _numbas()
        try:
            llvm.add_symbol(PARALLEL_FOR, called.address)
            yield
        finally:
            llvm.add_symbol(PARALLEL_FOR, others)


def start(count: int) -> None:
    """As many threads as are wanted, the caller's among them. Where the system gives us fewer, those do the loops."""
    if not THERE or _words[OTHERS] >= count - 1:
        return
    _, worker = _functions()
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


def share_among(count: int, numbas: bool) -> None:
    """From here on loops are shared by so many threads, of the layer that Numba has or of ours."""
    _words[WANTED] = count - 1
    _words[DELEGATE] = _numbas() if numbas else 0
    if not numbas:
        start(count)


def _after_fork() -> None:
    """In the child nobody is there but the thread that forked; others may have held the locks."""
    global _starting
    _starting = threading.Lock()
    _words[BUSY] = _words[ROUND] = _words[OTHERS] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
