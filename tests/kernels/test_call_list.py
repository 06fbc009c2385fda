"""Native calls as one: the bits are those of one by one, with threads, MKL and bfloat16 too; errors come through."""

import ctypes
import threading
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from numba import prange

from tapeless import Model
from tapeless.kernels.cpu import call_list, dispatch, gemm_bfloat16, pool
from tapeless.kernels.cpu.call_list import SINGLE_RUNS, CallList, as_one_call
from tapeless.kernels.cpu.compile import THREADED, BoundKernel, Kernel

STEPS = SINGLE_RUNS + 3


@pytest.fixture(params=[1, 2])
def threads(request):
    dispatch.set_threads(min(request.param, dispatch.cores()))
    yield
    dispatch.set_threads(None)


@pytest.mark.parametrize("products", dispatch.GEMM_LIBRARIES)
def test_a_step_as_one_has_the_bits_of_its_calls(products, threads):
    if products == "mkl" and dispatch.mkl() is None:
        pytest.skip("MKL is not installed")
    dispatch.set_gemm_library(products)
    try:
        assert_same_bits("float32")
    finally:
        dispatch.set_gemm_library(None)


@pytest.mark.skipif(not gemm_bfloat16.HAS_BFLOAT16, reason="this processor multiplies no bfloat16")
def test_a_step_in_bfloat16_too():
    assert_same_bits("bfloat16", activation="gelu")


def assert_same_bits(precision, **fields):
    """Training steps, of which the last ones are bound as one, beside the same calls walked."""
    one, walked = (
        Model("ops-102k", batch=32, time=8, backend="cpu", precision=precision, seed=3, **fields) for _ in range(2)
    )
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, one.config.vocab, (32, 8)), rng.integers(0, one.config.vocab, 32)
    for _ in range(STEPS):
        one.step(tokens, targets, lr=1e-3, clip=1.0)
        for _ in walked.walk_step(tokens, targets, lr=1e-3, clip=1.0)[0]:
            pass
    (calls,) = [each for runs in one.engine._captured.values() for each in runs if isinstance(each, CallList)]
    assert len(calls._runs) < len(calls._natives) / 10
    # Where calls are bound together, what lies between them in the workspace is not written.
    end = one.plan.workspace_offset if one.plan.program.calls != one.program.calls else one.plan.peak_bytes
    assert np.array_equal(one.engine.memory[:end], walked.engine.memory[:end])


def take(out, values, index, factor, times, add):
    for i in range(times):
        out[i] = values[index] * factor + (out[i] if add else 0.0)


TAKE = Kernel(take)


def test_every_kind_of_argument():
    out, values = np.zeros(5), np.arange(6, dtype=np.float32)[::2]
    runs = as_one_call([TAKE.bind(0, out, values, 1, 0.5, 3, False), TAKE.bind(0, out, values, 2, -0.25, 4, True)])
    assert len(runs) == 1
    runs[0]()
    assert out.tolist() == [0.0, 0.0, 0.0, -1.0, 0.0]


def test_what_cannot_be_called_so_keeps_its_place():
    out, values, seen = np.zeros(2), np.ones(1, np.float32), []
    twice = [TAKE.bind(0, out, values, 0, 1.0, 1, True)] * 2
    runs = as_one_call([*twice, lambda: seen.append(out[0]), *twice, partial(seen.append, "end")])
    assert len(runs) == 4
    for run in runs:
        run()
    assert seen == [2.0, "end"]
    assert out[0] == 4.0


def test_of_c_functions():
    root = ctypes.CDLL(None).memcpy
    root.restype = None
    source, to = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    word = ctypes.c_uint64
    copy = partial(root, word(to.ctypes.data), word(source.ctypes.data), word(8))
    (run,) = as_one_call([copy, partial(root, word(to.ctypes.data + 8), word(to.ctypes.data), word(8))])
    run()
    assert to.tolist() == [0, 1, 0, 1]


def fill(out):
    for i in prange(out.size):
        out[i] = 1.0


@pytest.mark.skipif(dispatch.cores() < 2, reason="needs two cores")
def test_a_loop_wakes_as_many_threads_as_its_work_is_worth():
    """A listed loop of one thread's work does not ask the pool."""
    dispatch.set_gemm_library("own")  # whose loops are on our own threads
    try:
        dispatch.set_threads(2)
        out, kernel = np.zeros(4), Kernel(fill)
        large, small = kernel.bind(THREADED, out), kernel.bind(1, out)
        assert isinstance(large, BoundKernel)
        assert isinstance(small, BoundKernel)
        assert (large.threads, small.threads) == (2, 1)
        for pair, rounds in (((large, large), 2), ((small, large), 1), ((small, small), 0)):
            (run,) = as_one_call(list(pair))
            before = int(pool._words[pool.GENERATION])
            run()
            assert int(pool._words[pool.GENERATION]) - before == rounds
        assert out.tolist() == [1.0] * 4
    finally:
        dispatch.set_gemm_library(None)
        dispatch.set_threads(None)


def test_how_many_threads_work_is_worth(monkeypatch):
    """Two from a size on, as many more as there are halves of it, rounded to 4, 8, … unless that is all."""
    for there, expected in {1: [1, 1, 1, 1, 1], 2: [1, 2, 2, 2, 2], 6: [1, 2, 2, 6, 6], 16: [1, 2, 2, 4, 16]}.items():
        monkeypatch.setattr(dispatch, "_threads", there)
        assert [dispatch.threads_for(work, 1000) for work in (999, 1000, 1999, 3900, 9000)] == expected
        assert dispatch.threads_for(0, 0) == there  # as tests ask for threads in any case


def eight(out, a, b, c, d, e, f, g):
    out[0] += a + b + c + d + e + f + g


def nine(out, a, b, c, d, e, f, g, h):
    out[0] += a + b + c + d + e + f + g + h


def test_lists_that_threads_make_at_once(monkeypatch):
    """Each needs a function of a kind that nobody has made. If nothing keeps them, both name theirs before either is
    compiled, and compile before either looks for it by its name."""
    named, compilations, trampoline = threading.Barrier(2), threading.Barrier(2), call_list._trampoline

    def wait(barrier):
        with suppress(threading.BrokenBarrierError):
            barrier.wait(0.5)

    class Kept:
        append = staticmethod(lambda library, kept=call_list._kept: (wait(compilations), kept.append(library)))

    monkeypatch.setattr(call_list, "_trampoline", lambda *asked: (wait(named), trampoline(*asked))[1])
    monkeypatch.setattr(call_list, "_kept", Kept)
    outs = np.zeros(1), np.zeros(1)
    binds = Kernel(eight).bind(0, outs[0], *range(7)), Kernel(nine).bind(0, outs[1], *range(8))
    threads = [threading.Thread(target=lambda one=one: [run() for run in as_one_call([one, one])]) for one in binds]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [out[0] for out in outs] == [2 * sum(range(7)), 2 * sum(range(8))]


def fails(out, at):
    if out[0] == at:
        raise ValueError("wrong")
    out[0] += 1


FAILS = Kernel(fails)


def test_an_exception_comes_through():
    out = np.zeros(1)
    (run,) = as_one_call([FAILS.bind(0, out, 5), FAILS.bind(0, out, 1), FAILS.bind(0, out, 7)])
    with pytest.raises(ValueError, match="wrong"):
        run()
    assert out[0] == 1
