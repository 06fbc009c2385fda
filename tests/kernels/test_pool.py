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
from numba import prange, types, uintp

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import blas, pool
from tapeless.kernels.cpu.compile import THREADED, Kernel

needs_two = pytest.mark.skipif(blas.cores() < 2, reason="one core: nothing is shared out")


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
    before, products = blas.threads(), blas.chosen()
    blas.set_products("own")
    blas.set_threads(min(2, blas.cores()))
    yield
    blas.set_products(products)
    blas.set_threads(before)


def rounds():
    return int(pool._words[pool.ROUND])


def eventually(holds):
    """On a machine that others use, too, a thread can be late: it is asked again, for a while."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline


def of_thread(number):
    return pool._words[pool.FIRST + number * pool.OF_EACH :][: pool.OF_EACH]


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
    assert rounds() == before + 500, "the loops were not ours"
    assert pool._words[pool.BUSY] == 0


def is_asleep():
    time.sleep(0.001)
    return of_thread(1)[pool.ASLEEP]


@needs_two
def test_each_takes_its_share(own_threads):
    """Also one that has slept."""
    _, threads, run = bound(8, LONG)
    assert pool._words[pool.OTHERS] >= pool._words[pool.WANTED] == 1

    def by_both():
        eventually(is_asleep)
        run()
        return len(set(threads.tolist())) == 2

    for _ in range(3):
        eventually(by_both)


def called_with(parts, part, others, arguments=2, sizes=3):
    """`parallel_for` as Numba calls it: each part is told of by its first argument, its sizes and what else it got."""
    given = np.array([1000 * (i + 1) for i in range(arguments)], np.int64)
    steps = np.array([7 * (i + 1) for i in range(arguments)], np.int64)
    dims = np.array([parts, *range(11, 11 + sizes)], np.int64)
    seen = []

    def do(own_arguments, own_sizes, own_steps, data):
        numbers = (ctypes.c_int64 * arguments).from_address(own_arguments)[:]
        seen.append((threading.get_ident(), numbers, (ctypes.c_int64 * (sizes + 1)).from_address(own_sizes)[:]))
        part(*seen[-1])
        assert own_steps == steps.ctypes.data
        assert data == 5

    called = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 4)(do)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 8)(pool._functions()[0].address)
    before, pool._words[pool.WANTED] = int(pool._words[pool.WANTED]), others
    places = given.ctypes.data, dims.ctypes.data, steps.ctypes.data
    try:
        function(ctypes.cast(called, ctypes.c_void_p).value, *places, 5, sizes, arguments, 2)
    finally:
        pool._words[pool.WANTED] = before
    return seen


@needs_two
@pytest.mark.parametrize("parts", [2, 3, 8, 40])
def test_what_a_part_is_given(own_threads, parts):
    seen = called_with(parts, lambda *_: None, others=1)
    assert sorted(numbers for _, numbers, _ in seen) == [[1000 + 7 * i, 2000 + 14 * i] for i in range(parts)]
    assert all(sizes == [1, 11, 12, 13] for _, _, sizes in seen)
    eventually(lambda: len({thread for thread, *_ in called_with(parts, lambda *_: time.sleep(0.01), others=1)}) == 2)
    assert len({thread for thread, _, _ in called_with(parts, lambda *_: time.sleep(0.001), others=0)}) == 1


@needs_two
def test_more_arguments_than_room(own_threads):
    before = rounds()
    assert [sizes[0] for _, _, sizes in called_with(8, lambda *_: None, 1, arguments=pool.SPACE + 1)] == [8]
    assert [sizes[0] for _, _, sizes in called_with(8, lambda *_: None, 1, sizes=pool.SPACE)] == [8]
    assert rounds() == before, "all of it by the caller, as it was given"
    assert len(called_with(8, lambda *_: None, 1, arguments=pool.SPACE, sizes=pool.SPACE - 1)) == 8
    assert rounds() == before + 1


@needs_two
def test_a_thread_that_does_not_come_delays_nobody(own_threads):
    """One that is said to be there and is not: the caller does its parts."""
    others = int(pool._words[pool.OTHERS])
    of_thread(others + 1)[:] = 0
    pool._words[pool.OTHERS] = others + 1
    try:
        seen = called_with(3 * (others + 2), lambda *_: None, others=others + 1)
    finally:
        pool._words[pool.OTHERS] = others
    assert len({numbers[0] for _, numbers, _ in seen}) == len(seen) == 3 * (others + 2)


@pytest.fixture
def counted(own_threads):
    """How often threads were woken, and how often the core was left to others."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
    found, kept = {pool.WAKE: 0, pool.YIELD: 0}, []
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
    others = int(pool._words[pool.OTHERS])
    own = of_thread(others + 1)
    own[:] = 0
    ctypes.CDLL(None).pthread_mutex_init(ctypes.c_void_p(own[pool.MUTEX :].ctypes.data), None)
    ctypes.CDLL(None).pthread_cond_init(ctypes.c_void_p(own[pool.SLEEP :].ctypes.data), None)
    pool._words[pool.OTHERS] = others + 1
    eventually(lambda: is_asleep() and all(of_thread(number)[pool.ASLEEP] for number in range(1, others + 1)))
    try:
        for says in (0, 1):
            own[pool.ASLEEP] = says
            for number in range(1, others + 1):
                of_thread(number)[pool.ASLEEP] = 0  # they are left to sleep
            before = counted[pool.WAKE]
            called_with(others + 2, lambda *_: None, others=others + 1)
            assert counted[pool.WAKE] == before + says
    finally:
        pool._words[pool.OTHERS] = others
        for number in range(1, others + 1):
            of_thread(number)[pool.ASLEEP] = 1
        called_with(others + 1, lambda *_: None, others=others)


@needs_two
def test_between_loops_nobody_sleeps(counted):
    _, _, run = bound(8, 20_000)

    def awake():
        before = counted[pool.WAKE]
        for _ in range(100):
            run()
        return counted[pool.WAKE] < before + 10

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

    others = int(pool._words[pool.OTHERS])
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.start(others + 2)
    pool.start(others + 2)
    assert begun == [f"tapeless-{others + 1}"]
    assert len(called_with(3 * (others + 2), lambda *_: None, others=others + 1)) == 3 * (others + 2)


@needs_two
def test_started_by_several_at_once(own_threads, monkeypatch):
    begin, begun = threading.Thread.start, []

    def slowly(thread):
        if thread.name.startswith("tapeless"):
            time.sleep(0.01)
            begun.append(thread.name)
        begin(thread)

    others = int(pool._words[pool.OTHERS])
    monkeypatch.setattr(threading.Thread, "start", slowly)
    starters = [threading.Thread(target=pool.start, args=(others + 3,)) for _ in range(4)]
    for each in starters:
        each.start()
    for each in starters:
        each.join()
    assert begun == [f"tapeless-{others + 1}", f"tapeless-{others + 2}"]
    assert pool._words[pool.OTHERS] == others + 2


@needs_two
def test_the_system_gives_no_threads(own_threads, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    others = int(pool._words[pool.OTHERS])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.start(others + 3)
    assert pool._words[pool.OTHERS] == others
    counts, _, run = bound(8)
    run()
    assert counts.tolist() == [1] * 8


@needs_two
def test_loops_of_others_stay_with_their_layer(own_threads):
    bound(8)[2]()
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
def test_while_we_compile_others_are_not_us(own_threads):
    """Neither a stranger that compiles in another thread, nor whoever settles meanwhile who does our loops."""
    out, before, done = np.zeros(1000), rounds(), threading.Event()

    @numba.njit(parallel=True)
    def stranger(out):
        for i in prange(out.size):
            out[i] += i

    def elsewhere():
        blas.set_products(None)  # MKL's, where it is there
        blas.set_products("own")
        done.set()
        stranger(out)

    thread = threading.Thread(target=elsewhere)
    with pool.ours():
        assert llvm.address_of_symbol(pool.PARALLEL_FOR) == pool._functions()[0].address
        pool.share_among(2, numbas=True)
        assert pool._words[pool.DELEGATE] != pool._functions()[0].address
        thread.start()
        assert done.wait(20), "settling waits for a compiler"
        thread.join(1.5)  # long enough to compile, if it were allowed to
        assert thread.is_alive()
    thread.join()
    assert out.tolist() == list(range(1000))
    assert rounds() == before
    assert llvm.address_of_symbol(pool.PARALLEL_FOR) != pool._functions()[0].address


def total(x, out):
    found = 0.0
    for i in prange(x.size):
        found += x[i]
    out[0] = found


@needs_two
def test_a_sum_over_parts_is_refused(own_threads):
    x, out, kernel = np.ones(1000), np.zeros(1), Kernel(total)
    for each in (kernel, kernel, Kernel(total)):  # also asked for again, and where it could have been read from disk
        with pytest.raises(TapelessError, match="sums over the parts of its prange"):
            each.bind(THREADED, x, out)
    kernel.bind(0, x, out)()
    assert out[0] == 1000


@needs_two
def test_where_mkl_serves_the_loops_are_on_its_threads(own_threads):
    if blas.mkl() is None:
        pytest.skip("no MKL here")
    counts, _, run = bound(8)
    run()
    blas.set_products("mkl")
    before = rounds()
    run()
    assert rounds() == before
    blas.set_products("own")
    run()
    assert rounds() == before + 1
    assert counts.tolist() == [3] * 8


def said(code):
    """By a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert said(code) == "10 1\n"


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
    assert said(code) == "True ['MainThread', 'tapeless-1']\n"


@needs_two
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_has_threads_again(busy):
    """Also where it was forked while another thread was in the middle of a loop, and held what it holds."""
    assert said(f"from tests.kernels.forking_pool import main; main({busy})") == "20 children were right\n"
