"""Threads of our own: every part of a loop is done once, whoever does it, whatever else is going on."""

import ctypes
import subprocess
import sys
import threading
import time

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba import prange

from tapeless.kernels.cpu import blas, pool
from tapeless.kernels.cpu.compile import THREADED, Kernel

needs_two = pytest.mark.skipif(blas.cores() < 2, reason="one core: nothing is shared out")


def count_parts(counts, works, times):
    """Adds one to its own number, after as much work as that number asks for."""
    for i in prange(counts.size):
        value = 1.0
        for _ in range(works[i] * times):
            value = value * 0.5 + 0.5
        counts[i] += int(value)


COUNT = Kernel(count_parts)


@pytest.fixture
def own_threads():
    """Two of them, doing the loops."""
    before, products = blas.threads(), blas.chosen()
    blas.set_products("own")
    blas.set_threads(min(2, blas.cores()))
    yield
    blas.set_products(products)
    blas.set_threads(before)


def rounds():
    return int(pool._words[pool.ROUND])


def bound(size, most=0, times=1):
    counts = np.zeros(size, np.int64)
    works = np.random.default_rng(size).integers(0, most + 1, size)
    return counts, COUNT.bind(THREADED, counts, works, times)


@needs_two
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_every_part_is_done_once(own_threads, size):
    counts, run = bound(size, 50)
    before = rounds()
    for _ in range(500):
        run()
    assert counts.tolist() == [500] * size
    assert rounds() == before + 500, "the loops were not ours"


@needs_two
def test_after_sleep(own_threads):
    """A thread that has fallen asleep is woken: the loop is too long for the caller to have it all."""
    counts = np.zeros(2, np.int64)
    long = COUNT.bind(THREADED, counts, np.ones(2, np.int64), 3_000_000)
    own = pool._words[pool.FIRST + pool.OF_EACH :]
    for _ in range(5):
        deadline = time.monotonic() + 20
        while not own[pool.ASLEEP]:
            assert time.monotonic() < deadline, "it never sleeps"
            time.sleep(0.001)
        begun = int(own[pool.DONE])
        long()
        assert int(own[pool.DONE]) > begun
    assert counts.tolist() == [5, 5]


@needs_two
def test_a_thread_that_does_not_come_delays_nobody(own_threads):
    """Threads that are said to be there and are not: the caller does their parts."""
    counts, run = bound(64, 5)
    others = int(pool._words[pool.OTHERS])
    if others == pool.MOST - 1:
        pytest.skip("as many cores as threads can be")
    pool._words[pool.FIRST + (others + 1) * pool.OF_EACH :][: pool.OF_EACH] = 0
    pool._words[pool.OTHERS] = others + 1
    numba.set_num_threads(min(numba.config.NUMBA_NUM_THREADS, others + 2))
    try:
        for _ in range(100):
            run()
    finally:
        pool._words[pool.OTHERS] = others
    assert counts.tolist() == [100] * 64


@needs_two
def test_callers_at_once(own_threads):
    """As many as there are cores, and more: whoever finds the threads taken does everything alone."""
    many = [bound(8, 200) for _ in range(5)]

    def often(run):
        numba.set_num_threads(2)  # of this thread of Python's
        for _ in range(2000):
            run()

    threads = [threading.Thread(target=often, args=(run,)) for _, run in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for counts, _ in many:
        assert counts.tolist() == [2000] * 8
    assert pool._words[pool.BUSY] == 0


@needs_two
def test_more_arguments_than_room(own_threads):
    words = np.array([8, 0], np.int64)
    seen = []
    called = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 4)(lambda *given: seen.append(given))
    address = ctypes.cast(called, ctypes.c_void_p).value
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 8)(pool._functions()[0].address)
    before = rounds()
    function(address, 1, words.ctypes.data, 2, 3, 1, pool.SPACE + 1, 2)
    function(address, 1, words.ctypes.data, 2, 3, pool.SPACE, 1, 2)
    assert seen == [(1, words.ctypes.data, 2, 3)] * 2, "all of it by the caller, as it was given"
    assert rounds() == before


@needs_two
def test_the_system_gives_no_threads(own_threads, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    others = int(pool._words[pool.OTHERS])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.start(others + 3)
    assert pool._words[pool.OTHERS] == others
    counts, run = bound(8)
    run()
    assert counts.tolist() == [1] * 8


@needs_two
def test_loops_of_others_stay_with_their_layer(own_threads):
    bound(8)[1]()
    numbas = llvm.address_of_symbol(pool.PARALLEL_FOR)
    assert numbas != pool._functions()[0].address

    @numba.njit(parallel=True)
    def stranger(out):
        for i in prange(out.size):
            out[i] += i

    out, before = np.zeros(1000), rounds()
    stranger(out)
    assert out.tolist() == list(range(1000))
    assert rounds() == before


@needs_two
def test_a_failure_to_compile_leaves_numba_as_it_was(own_threads):
    numbas = llvm.address_of_symbol(pool.PARALLEL_FOR)

    def wrong(out):
        for i in prange(out.size):
            out[i] = out.nothing_of_this_name

    with pytest.raises(numba.core.errors.TypingError):
        Kernel(wrong).bind(THREADED, np.zeros(4))
    assert llvm.address_of_symbol(pool.PARALLEL_FOR) == numbas


@needs_two
def test_where_mkl_serves_the_loops_are_on_its_threads(own_threads):
    if blas.mkl() is None:
        pytest.skip("no MKL here")
    counts, run = bound(8)
    run()
    blas.set_products("mkl")
    before = rounds()
    run()
    assert rounds() == before
    blas.set_products("own")
    run()
    assert rounds() == before + 1
    assert counts.tolist() == [3] * 8


@needs_two
def test_a_layer_that_somebody_has_started_before_us():
    """`workqueue` would end the process where two threads call it: loops stay with us, whosever the products are."""
    code = (
        "import numba, numpy as np, threading\n"
        "numba.config.THREADING_LAYER = 'workqueue'\n"
        "numba.set_num_threads(2)\n"
        "from tapeless.kernels.cpu import blas, pool\n"
        "import tapeless\n"
        "blas.set_threads(2)\n"
        "fields = dict(batch=2, time=64, layers=1, vocab=1100, context=80)\n"
        "models = [tapeless.Model('gpt2-4x256', **fields) for _ in range(2)]\n"
        "tokens, losses = np.random.default_rng(0).integers(0, 50, (2, 65)), []\n"
        "def steps(model):\n"
        "    for _ in range(5):\n"
        "        losses.append(model.forward_backward(tokens[:, :-1], tokens[:, 1:]))\n"
        "threads = [threading.Thread(target=steps, args=(model,)) for model in models]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "assert numba.threading_layer() == 'workqueue' and pool._words[pool.ROUND] > 10\n"
        "print(len(losses), len(set(losses)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "10 1\n", done.stderr


@needs_two
def test_without_mkl_nobody_else_s_threads_are_used():
    """The layer that Numba has then is asked how a loop is divided, and nothing else."""
    code = (
        "import numpy as np\n"
        "from tapeless.kernels.cpu import blas, pool\n"
        "blas._installed = lambda name: None\n"
        "import tapeless, threading\n"
        "blas.set_threads(2)\n"
        "model = tapeless.Model('gpt2-4x256', batch=2, time=64, layers=1, vocab=1100, context=80)\n"
        "tokens = np.random.default_rng(0).integers(0, 50, (2, 65))\n"
        "model.forward_backward(tokens[:, :-1], tokens[:, 1:])\n"
        "print(int(pool._words[pool.ROUND]) > 10, [t.name for t in threading.enumerate()])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True ['MainThread', 'tapeless-1']\n", done.stderr


@needs_two
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_has_threads_again(busy):
    """Also where it was forked while another thread was in the middle of a loop, and held what it holds."""
    code = f"from tests.kernels.forking_pool import main; main({busy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "20 children were right\n", done.stderr
