"""The thread pool: every part of a loop runs once, on whichever thread, whatever else is going on."""

import ctypes
import subprocess
import sys
import threading
import time
from typing import Any

import numba
import numpy as np
import pytest
from numba import prange, types, uintp

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import dispatch, pool
from tapeless.kernels.cpu.compile import THREADED, Kernel

needs_two = pytest.mark.skipif(dispatch.cores() < 2, reason="one core: nothing is shared out")


thread_number = types.ExternalFunction("pthread_self", uintp())


def count_parts(counts, threads, times):
    """Adds one to its own number, after work that no compiler does beforehand, and says who did it."""
    for i in prange(counts.size):
        value = counts[i] + i + 1
        for _ in range(times):
            value ^= value << 13
            value ^= value >> 7
            value ^= value << 17
        counts[i] += 1 if value != 0 else 0
        threads[i] = thread_number()


COUNT = Kernel(count_parts)
LONG = 2_000_000  # times: milliseconds


@pytest.fixture
def own_threads():
    """Two of them, doing the loops."""
    before, products = dispatch.threads(), dispatch.chosen()
    dispatch.set_gemm_library("own")
    dispatch.set_threads(min(2, dispatch.cores()))
    yield
    dispatch.set_gemm_library(products)
    dispatch.set_threads(before)


def rounds():
    return int(pool._words[pool.GENERATION])


def eventually(holds):
    """On a machine that others use, too, a thread can be late: it is asked again, for a while."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline


def of_thread(number):
    return pool._words[pool.FIRST_THREAD + number * pool.THREAD_WORDS :][: pool.THREAD_WORDS]


def bound(size, times=1):
    counts, threads = np.zeros(size, np.int64), np.zeros(size, np.uint64)
    return counts, threads, COUNT.bind(THREADED, counts, threads, times)


@needs_two
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_every_part_is_done_once(own_threads, size):
    counts, _, run = bound(size, 20)
    before = rounds()
    for _ in range(500):
        run()
    assert counts.tolist() == [500] * size
    assert rounds() == before + 500 * (size > 1), "the loops were not ours"
    assert pool._words[pool.BUSY] == 0


def is_asleep():
    time.sleep(0.001)
    return of_thread(1)[pool.SLEEPING]


@needs_two
def test_each_takes_its_share(own_threads):
    """Also one that has slept."""
    _, threads, run = bound(8, LONG)
    assert pool._words[pool.WORKERS] >= 1

    def by_both():
        eventually(is_asleep)
        run()
        return len(set(threads.tolist())) == 2

    for _ in range(3):
        eventually(by_both)


def called_with(parts, ran, others):
    """`parallel_for` as a kernel calls it: who was given which range."""
    seen = []

    def do(begin, end, values):
        assert values == 5
        seen.append((threading.get_ident(), begin, end))
        ran(*seen[-1])

    called = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 3)(do)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 4)(pool.register().address)
    function(ctypes.cast(called, ctypes.c_void_p).value, 5, parts, others + 1)
    assert [part for _, begin, end in sorted(seen, key=lambda each: each[1]) for part in range(begin, end)] == [
        *range(parts)
    ]
    return seen


def nothing(*_):
    pass


@needs_two
@pytest.mark.parametrize("parts", [0, 1, 2, 3, 8, 41])
def test_each_thread_is_given_a_range(own_threads, parts):
    middle = parts // 2
    expected = [(0, middle), (middle, parts)] if parts > 1 else [(0, parts)]
    assert sorted((begin, end) for _, begin, end in called_with(parts, nothing, others=1)) == expected
    assert [each[1:] for each in called_with(parts, nothing, others=0)] == [(0, parts)]


@needs_two
def test_ranges_are_run_by_different_threads(own_threads):
    eventually(lambda: len({thread for thread, *_ in called_with(2, lambda *_: time.sleep(0.01), others=1)}) == 2)


@needs_two
def test_a_thread_that_does_not_come_delays_nobody(own_threads):
    """One that is said to be there and is not: the caller does its parts."""
    others = int(pool._words[pool.WORKERS])
    of_thread(others + 1)[:] = 0
    pool._words[pool.WORKERS] = others + 1
    try:
        seen = called_with(3 * (others + 2), nothing, others=others + 1)
    finally:
        pool._words[pool.WORKERS] = others
    assert len(seen) == others + 2


@pytest.fixture
def counted(own_threads):
    """How often threads were woken, and how often the core was left to others."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
    found, kept = {pool.SIGNAL: 0, pool.YIELD: 0}, []
    for word in found:
        address = int(pool._words[word])

        def call(first, second, word=word, address=address):
            found[word] += 1
            return kind(address)(first, second)

        kept.append((word, address, kind(call)))
        pool._words[word] = ctypes.cast(kept[-1][2], ctypes.c_void_p).value or 0
    yield found
    for word, address, _ in kept:
        pool._words[word] = address


@needs_two
def test_who_sleeps_is_woken_and_nobody_else(counted):
    """Of one that is said to be there and is not nobody knows but what it says itself."""
    others = int(pool._words[pool.WORKERS])
    own = of_thread(others + 1)
    own[:] = 0
    ctypes.CDLL(None).pthread_mutex_init(ctypes.c_void_p(own[pool.MUTEX :].ctypes.data), None)
    ctypes.CDLL(None).pthread_cond_init(ctypes.c_void_p(own[pool.CONDITION :].ctypes.data), None)
    pool._words[pool.WORKERS] = others + 1
    eventually(lambda: is_asleep() and all(of_thread(number)[pool.SLEEPING] for number in range(1, others + 1)))
    try:
        for says in (0, 1):
            own[pool.SLEEPING] = says
            for number in range(1, others + 1):
                of_thread(number)[pool.SLEEPING] = 0  # they are left to sleep
            before = counted[pool.SIGNAL]
            called_with(others + 2, nothing, others=others + 1)
            assert counted[pool.SIGNAL] == before + says
    finally:
        pool._words[pool.WORKERS] = others
        for number in range(1, others + 1):
            of_thread(number)[pool.SLEEPING] = 1
        called_with(others + 1, nothing, others=others)


@needs_two
def test_between_loops_nobody_sleeps(counted):
    _, _, run = bound(8, 20_000)

    def awake():
        before = counted[pool.SIGNAL]
        for _ in range(100):
            run()
        return counted[pool.SIGNAL] < before + 10

    eventually(awake)


@needs_two
def test_who_waits_long_leaves_the_core_to_others(counted):
    main = threading.get_ident()

    def has_yielded():
        called_with(2, lambda thread, *_: time.sleep(0.02 if thread == main else 0.2), others=1)
        return counted[pool.YIELD]

    eventually(has_yielded)


@needs_two
def test_callers_at_once(own_threads):
    """As many as there are cores, and more: whoever finds the threads taken does everything alone."""
    many = [bound(8, 2000) for _ in range(5)]

    def often(run):
        for _ in range(1000):
            run()

    threads = [threading.Thread(target=often, args=(run,)) for _, _, run in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for counts, _, _ in many:
        assert counts.tolist() == [1000] * 8
    assert pool._words[pool.BUSY] == 0


@needs_two
def test_starting_is_interrupted(own_threads, monkeypatch):
    """After a thread has begun: another start does not begin it once more, whose lock it would make anew."""
    begin, begun = threading.Thread.start, []

    def interrupted(thread):
        begin(thread)
        begun.append(thread.name)
        raise KeyboardInterrupt

    others = int(pool._words[pool.WORKERS])
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.start(others + 2)
    pool.start(others + 2)
    assert begun == [f"tapeless-{others + 1}"]
    assert len(called_with(3 * (others + 2), nothing, others=others + 1)) == others + 2


@needs_two
def test_started_by_several_at_once(own_threads, monkeypatch):
    begin, begun = threading.Thread.start, []

    def slowly(thread):
        if thread.name.startswith("tapeless"):
            time.sleep(0.01)
            begun.append(thread.name)
        begin(thread)

    others = int(pool._words[pool.WORKERS])
    monkeypatch.setattr(threading.Thread, "start", slowly)
    starters = [threading.Thread(target=pool.start, args=(others + 3,)) for _ in range(4)]
    for each in starters:
        each.start()
    for each in starters:
        each.join()
    assert begun == [f"tapeless-{others + 1}", f"tapeless-{others + 2}"]
    assert pool._words[pool.WORKERS] == others + 2


@needs_two
def test_the_system_gives_no_threads(own_threads, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    others = int(pool._words[pool.WORKERS])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.start(others + 3)
    assert pool._words[pool.WORKERS] == others
    counts, _, run = bound(8)
    run()
    assert counts.tolist() == [1] * 8


@needs_two
def test_loops_of_others_stay_with_their_layer(own_threads):
    bound(8)[2]()

    @numba.njit(parallel=True)
    def stranger(out):
        for i in prange(out.size):
            out[i] += i

    out, before = np.zeros(1000), rounds()
    stranger(out)
    assert out.tolist() == list(range(1000))
    assert rounds() == before


def total(x, out):
    found = 0.0
    for i in prange(x.size):
        found += x[i]
    out[0] = found


def last_one(x, out):
    for i in prange(x.size):
        found = x[i]
    out[0] = found


def of_earlier_parts(x, out):
    found = 0.0
    for i in prange(x.size):
        if i == 0:
            found = 0.0
        found = found + x[i]
        out[i] = found


def of_the_loop_before(x, out):
    for found in range(3):
        out[found] = found
    for i in prange(x.size):
        for _ in range(i):
            found = i
        out[i] = found


def of_the_last_round(x, out):
    found = 0
    for k in range(3):
        out[k] = found
        for i in prange(x.size):
            found = i
            x[i] = found


@pytest.mark.parametrize("function", [total, last_one, of_earlier_parts, of_the_loop_before, of_the_last_round])
def test_what_parts_pass_on_is_refused(function):
    """On one thread too: a kernel is compiled once."""
    with pytest.raises(TapelessError, match="sums over the parts of its prange in found"):
        Kernel(function).bind(0, np.ones(1000), np.zeros(1))


def with_names_of_its_own(x, out):
    found = 0.0
    for c in range(x.size):
        found += x[c]
    out[:] = found
    for i in prange(x.size):
        found = 0.0
        for c in range(i):
            found += x[c]
        c = 2
        if found > 3:
            c = 1
        out[i] += found * c
    found = 7.0
    out[0] = found


def test_a_part_may_use_a_name_that_stands_before_the_loop():
    x, out = np.ones(1000), np.zeros(1000)
    Kernel(with_names_of_its_own).bind(1 << 20, x, out)()
    wanted = [1000 + i * (1 if i > 3 else 2) for i in range(1000)]
    assert out.tolist() == [7, *wanted[1:]]


def fails_in_one(x):
    for i in prange(x.size):
        if x[i] == 7:
            raise ValueError("seven")
        x[i] += 1


@needs_two
@pytest.mark.parametrize("threaded_from", [0, 1000], ids=["threads", "one thread"])
def test_a_part_that_raises(own_threads, threaded_from):
    """On whichever thread: it is raised where the kernel was called, and the threads serve on."""
    for at in (0, 7):
        x = np.zeros(8)
        x[at] = 7
        run: Any = Kernel(fails_in_one).bind(8, x, threaded_from=threaded_from)
        with pytest.raises(ValueError, match="seven"):
            run()
        run.args[0][:] = 1
        run()
        assert x.tolist() == [2] * 8


@needs_two
def test_what_a_part_computes_hangs_on_no_thread(own_threads):
    """The same machine code, whoever runs it: one kernel is compiled, and not one for each number of threads."""
    counts, threads = np.zeros(8, np.int64), np.zeros(8, np.uint64)
    alone: Any = COUNT.bind(0, counts, threads, 1)
    shared: Any = COUNT.bind(THREADED, counts, threads, 1)
    assert alone.result is shared.result
    assert (alone.threads, shared.threads) == (1, 2)


@needs_two
def test_where_mkl_serves_the_loops_are_on_its_threads(own_threads):
    if dispatch.mkl() is None:
        pytest.skip("no MKL here")
    counts, _, run = bound(8)
    run()
    dispatch.set_gemm_library("mkl")
    before = rounds()
    run()
    assert rounds() == before
    dispatch.set_gemm_library("own")
    run()
    assert rounds() == before + 1
    assert counts.tolist() == [3] * 8


def said(code):
    """By a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_two
def test_without_mkl_nobody_else_s_threads_are_used():
    """Numba's own layer is never started."""
    code = (
        "import numpy as np\n"
        "from tapeless.kernels.cpu import dispatch, pool\n"
        "dispatch._installed = lambda name: None\n"
        "import tapeless, threading\n"
        "dispatch.set_threads(2)\n"
        "model = tapeless.Model('gpt2-4x256', batch=2, time=64, layers=1, vocab=1100, context=80)\n"
        "tokens = np.random.default_rng(0).integers(0, 50, (2, 65))\n"
        "model.forward_backward(tokens[:, :-1], tokens[:, 1:])\n"
        "print(int(pool._words[pool.GENERATION]) > 10, [t.name for t in threading.enumerate()])\n"
        "from numba.np.ufunc import parallel\n"
        "print(parallel._is_initialized)\n"
    )
    assert said(code) == "True ['MainThread', 'tapeless-1']\nFalse\n"


@needs_two
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_has_threads_again(busy):
    """Also where it was forked while another thread was in the middle of a loop, and held what it holds."""
    assert said(f"from tests.kernels.forking_pool import main; main({busy})") == "20 children were right\n"
