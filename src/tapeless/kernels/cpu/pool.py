"""The thread pool on which the parallel loops of kernels run.

`outline.py` turns a loop over parts into a function that runs a range of them. The caller cuts the parts into one range
for each thread, itself among them, and enqueues a range by writing a new generation number for its worker. A worker
claims its range by compare-and-swap. The caller then claims whatever is not claimed yet, so that a worker that is slow
to wake delays nothing. If the pool is in use, a second caller runs all of its parts by itself. Which thread runs a part
changes no bit of it; a loop whose parts pass a sum on is refused.

An idle worker spins for about a millisecond and then sleeps on a condition variable. Where MKL's GEMM serves, loops run
on the threads of its OpenMP instead, because two pools that spin take the cores from each other.
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

from tapeless.kernels.cpu.functions import CFunction
from tapeless.kernels.cpu.instructions import instruction
from tapeless.kernels.cpu.microkernels_float32 import declare
from tapeless.kernels.cpu.outline import PARALLEL_FOR
from tapeless.kernels.cpu.vector import inlined

MAX_THREADS = 256
SPIN_LIMIT = 30_000  # times that an idle worker looks for work before it sleeps: about a millisecond
YIELD_AFTER = 2_000  # times that a caller looks whether a worker is done before it yields the core
SYMBOL = "tapeless_pool"  # the address of the pool's words, in machine code
WORD, STATUS = ir.IntType(64), ir.IntType(32)

# Words of the pool, in lines of 128 bytes, so that no thread waits for a neighbour's cache line: whether a caller has
# the pool, and its generation; addresses that are only read; the loop that is run; and for each thread the generation
# that is enqueued, claimed and done, whether it sleeps, its mutex and its condition variable.
LINE = 16
BUSY, GENERATION = 0, 1
WORKERS, LOCK, UNLOCK, WAIT, SIGNAL, YIELD, OPENMP, OMP_RANGE, OMP_NUMBER, OMP_THREADS = range(LINE, LINE + 10)
FUNCTION, ARGUMENTS, PARTS, RANGES = range(2 * LINE, 2 * LINE + 4)
FIRST_THREAD = 3 * LINE
ENQUEUED, CLAIMED, DONE, SLEEPING, MUTEX, CONDITION, THREAD_WORDS = 0, 1, 2, 3, LINE, 2 * LINE, 3 * LINE


@instruction(types.uintp())
def _pool_address(builder):
    words = builder.module.globals.get(SYMBOL) or ir.GlobalVariable(builder.module, WORD, SYMBOL)
    return builder.ptrtoint(words, WORD)


def _pointer(builder: Any, base: Any, index: Any) -> Any:
    return builder.inttoptr(builder.add(base, builder.mul(index, ir.Constant(WORD, 8))), WORD.as_pointer())


@instruction(intp(uintp, intp))
def _load_atomic(builder, base, index):
    """A word, as the last thread that stored it left it."""
    return builder.load_atomic(_pointer(builder, base, index), "seq_cst", 8, typ=WORD)


@instruction(types.void(uintp, intp, intp))
def _store_atomic(builder, base, index, value):
    builder.store_atomic(value, _pointer(builder, base, index), "seq_cst", 8)


@instruction(intp(uintp, intp))
def _load(builder, base, index):
    """A word that no thread stores meanwhile."""
    return builder.load(_pointer(builder, base, index), typ=WORD)


@instruction(types.void(uintp, intp, intp))
def _store(builder, base, index, value):
    builder.store(value, _pointer(builder, base, index))


@instruction(types.boolean(uintp, intp, intp, intp))
def _compare_and_swap(builder, base, index, before, after):
    """Store `after` in a word that holds `before`; returns whether it did."""
    place = _pointer(builder, base, index)
    pair = builder.cmpxchg(place, before, after, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1)


@instruction(types.void())
def _pause(builder):
    """The processor's hint for a spin loop."""
    if builder.module.triple.startswith("x86_64"):
        builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
    elif builder.module.triple.startswith(("aarch64", "arm64")):
        builder.call(declare(builder, "llvm.aarch64.isb", ir.VoidType(), [STATUS]), [ir.Constant(STATUS, 15)])


@instruction(types.void(uintp, uintp, uintp))
def _call(builder, address, first, second):
    """Call a function of the system's, and ignore what it returns."""
    kind = ir.FunctionType(STATUS, [WORD, WORD])
    builder.call(builder.inttoptr(address, kind.as_pointer()), [first, second])


@instruction(types.void(uintp, intp, intp, uintp))
def _call_range(builder, function, begin, end, values):
    kind = ir.FunctionType(ir.VoidType(), [WORD] * 3)
    builder.call(builder.inttoptr(function, kind.as_pointer()), [begin, end, values])


@instruction(intp(uintp))
def _call_int(builder, address):
    """The int that a function without arguments returns."""
    kind = ir.FunctionType(STATUS, [])
    return builder.sext(builder.call(builder.inttoptr(address, kind.as_pointer()), []), WORD)


@instruction(types.void(uintp, uintp, uintp, intp))
def _openmp_parallel(builder, address, function, loop, threads):
    """`GOMP_parallel`, which every OpenMP has: each of its threads calls the function with the loop."""
    kind = ir.FunctionType(ir.VoidType(), [WORD, WORD, STATUS, STATUS])
    called = builder.inttoptr(address, kind.as_pointer())
    builder.call(called, [function, loop, builder.trunc(threads, STATUS), ir.Constant(STATUS, 0)])


@instruction(types.uintp())
def _stack_words(builder):
    """The address of three words on the stack, for a loop that OpenMP's threads run."""
    with builder.goto_entry_block():
        words = builder.alloca(ir.ArrayType(WORD, 3))
    return builder.ptrtoint(words, WORD)


@inlined
def _run_range(function, values, parts, number, ranges):
    """Run range `number` of the `ranges` that the parts are cut into."""
    begin, end = parts * number // ranges, parts * (number + 1) // ranges
    if begin < end:
        _call_range(uintp(function), intp(begin), intp(end), uintp(values))


@inlined
def _run_own_range(pool, number):
    """Run range `number` of the loop that is enqueued."""
    parts, ranges = _load(pool, intp(PARTS)), _load(pool, intp(RANGES))
    _run_range(_load(pool, intp(FUNCTION)), _load(pool, intp(ARGUMENTS)), parts, number, ranges)


@inlined
def _thread_words(pool, number):
    return pool + uintp(8 * (FIRST_THREAD + number * THREAD_WORDS))


@inlined
def _claim(own, generation):
    """Whether this caller claimed the range that was enqueued for a thread with this generation."""
    before = _load_atomic(own, intp(CLAIMED))
    return before < generation and _compare_and_swap(own, intp(CLAIMED), before, generation)


@inlined
def _sleep_until_enqueued(pool, own, seen):
    """The mutex is held from the last look on, so that no range is enqueued unnoticed."""
    mutex = own + uintp(8 * MUTEX)
    _call(uintp(_load(pool, intp(LOCK))), mutex, uintp(0))
    _store_atomic(own, intp(SLEEPING), intp(1))
    while _load_atomic(own, intp(ENQUEUED)) == seen:
        _call(uintp(_load(pool, intp(WAIT))), own + uintp(8 * CONDITION), mutex)
    _store_atomic(own, intp(SLEEPING), intp(0))
    _call(uintp(_load(pool, intp(UNLOCK))), mutex, uintp(0))


@inlined
def _wake(pool, own):
    mutex = own + uintp(8 * MUTEX)
    _call(uintp(_load(pool, intp(LOCK))), mutex, uintp(0))
    _call(uintp(_load(pool, intp(SIGNAL))), own + uintp(8 * CONDITION), uintp(0))
    _call(uintp(_load(pool, intp(UNLOCK))), mutex, uintp(0))


def worker_loop(number):
    """The loop of worker `number`, which never returns: run what is enqueued, spin, sleep."""
    pool = _pool_address()
    own = _thread_words(pool, number)
    seen, spins = intp(0), 0
    while True:
        generation = _load_atomic(own, intp(ENQUEUED))
        if generation != seen:
            seen, spins = generation, 0
            if _claim(own, generation):
                _run_own_range(pool, number)
                _store_atomic(own, intp(DONE), generation)
        elif spins < SPIN_LIMIT:
            spins += 1
            _pause()
        else:
            spins = 0
            _sleep_until_enqueued(pool, own, seen)


def openmp_range(loop):
    """The range of one of OpenMP's threads. `loop`: the address of a function, its values and how many parts it has."""
    pool = _pool_address()
    number = _call_int(uintp(_load(pool, intp(OMP_NUMBER))))
    ranges = _call_int(uintp(_load(pool, intp(OMP_THREADS))))
    _run_range(_load(loop, intp(0)), _load(loop, intp(1)), _load(loop, intp(2)), number, ranges)


def parallel_for(function, values, parts, threads):
    """Run `function(begin, end, values)` on ranges that together are all parts from 0 on, on up to so many threads.

    function: the address of code; values: the address that it is handed."""
    pool = _pool_address()
    openmp = uintp(_load_atomic(pool, intp(OPENMP)))
    if openmp and min(threads, parts) > 1:
        loop = _stack_words()
        _store(loop, intp(0), intp(function))
        _store(loop, intp(1), intp(values))
        _store(loop, intp(2), parts)
        _openmp_parallel(openmp, uintp(_load(pool, intp(OMP_RANGE))), loop, min(threads, parts))
        return
    workers = min(_load_atomic(pool, intp(WORKERS)), threads - 1, parts - 1)
    if workers < 1 or not _compare_and_swap(pool, intp(BUSY), intp(0), intp(1)):
        _call_range(function, intp(0), parts, values)
        return
    generation = _load(pool, intp(GENERATION)) + 1
    _store(pool, intp(GENERATION), intp(generation))
    _store(pool, intp(FUNCTION), intp(function))
    _store(pool, intp(ARGUMENTS), intp(values))
    _store(pool, intp(PARTS), parts)
    _store(pool, intp(RANGES), intp(workers + 1))
    _enqueue(pool, workers, intp(generation))
    for number in range(workers + 1):  # range 0 is the caller's, and so is each that no worker has claimed yet
        own = _thread_words(pool, number)
        if number == 0 or _claim(own, intp(generation)):
            _run_own_range(pool, number)
            _store_atomic(own, intp(DONE), intp(generation))
    _wait_until_done(pool, workers, intp(generation))
    _store_atomic(pool, intp(BUSY), intp(0))


@inlined
def _enqueue(pool, workers, generation):
    """Hand each worker the range with its number, and wake it if it sleeps."""
    for number in range(1, workers + 1):
        own = _thread_words(pool, number)
        _store_atomic(own, intp(ENQUEUED), generation)
        if _load_atomic(own, intp(SLEEPING)):
            _wake(pool, own)


@inlined
def _wait_until_done(pool, workers, generation):
    for number in range(1, workers + 1):
        own, spins = _thread_words(pool, number), 0
        while _load_atomic(own, intp(DONE)) != generation:
            spins += 1
            if spins < YIELD_AFTER:
                _pause()
            else:
                _call(uintp(_load(pool, intp(YIELD))), uintp(0), uintp(0))


SYSTEM = {
    LOCK: "pthread_mutex_lock",
    UNLOCK: "pthread_mutex_unlock",
    WAIT: "pthread_cond_wait",
    SIGNAL: "pthread_cond_signal",
    YIELD: "sched_yield",
}
HAS_THREADS = sys.platform != "win32"
_memory = np.zeros(FIRST_THREAD + MAX_THREADS * THREAD_WORDS + LINE, np.int64)
_words = _memory[-_memory.ctypes.data % (8 * LINE) // 8 :]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_memory))  # workers read it for as long as the process runs
_starting = threading.Lock()


_parallel_for = CFunction(parallel_for, types.void(uintp, uintp, intp, intp))
_worker_loop = CFunction(worker_loop, types.void(intp))
_openmp_range = CFunction(openmp_range, types.void(uintp))


@cache
def register() -> Any:
    """Compile `parallel_for` and register it under the name that the machine code of kernels is linked to."""
    _register_words()
    called = _parallel_for.ready()
    llvm.add_symbol(PARALLEL_FOR, called.address)
    return called


@cache
def _register_words() -> None:
    llvm.add_symbol(SYMBOL, _words.ctypes.data)
    if HAS_THREADS:
        system = ctypes.CDLL(None)
        for place, name in SYSTEM.items():
            _words[place] = _address(system, name)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def start(count: int) -> None:
    """Start workers up to so many threads, the caller's among them. If the system starts fewer, those run the loops."""
    if not HAS_THREADS or _words[WORKERS] >= count - 1:
        return
    _register_words()
    worker = _worker_loop.ready()
    system = ctypes.CDLL(None)
    with _starting:
        for number in range(int(_words[WORKERS]) + 1, min(count, MAX_THREADS)):
            own = _words[FIRST_THREAD + number * THREAD_WORDS :][:THREAD_WORDS]
            own[:] = 0
            system.pthread_mutex_init(ctypes.c_void_p(own[MUTEX:].ctypes.data), None)
            system.pthread_cond_init(ctypes.c_void_p(own[CONDITION:].ctypes.data), None)
            # Counted first: an interrupt can come after the start, and no worker may be started twice. A worker that
            # is counted and not there delays nothing.
            _words[WORKERS] = number
            try:
                threading.Thread(target=worker.ctypes, args=(number,), name=f"tapeless-{number}", daemon=True).start()
            except RuntimeError:
                _words[WORKERS] = number - 1
                return


def use_openmp(library: ctypes.CDLL | None) -> None:
    """Run loops on this OpenMP's threads from now on, or on our own (None)."""
    if library is not None:
        _register_words()
        _words[OMP_RANGE] = _openmp_range.ready().address
        _words[OMP_NUMBER] = _address(library, "omp_get_thread_num")
        _words[OMP_THREADS] = _address(library, "omp_get_num_threads")
    _words[OPENMP] = 0 if library is None else _address(library, "GOMP_parallel")


def _after_fork() -> None:
    """A child has no thread but the one that forked; others may have held the locks."""
    global _starting
    _starting = threading.Lock()
    _words[BUSY] = _words[GENERATION] = _words[WORKERS] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
