"""What is asked of raw kernels besides their numbers: memory, adding, threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.check.own.bounds import Allowed
from tapeless.check.own.definition import Expected
from tapeless.check.own.pair import Form, PairKernel
from tapeless.check.own.target import Ran, Way
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.check.own.runner import Bench
    from tapeless.check.own.table import Case

AT_ONCE = 4  # threads that call the kernel at the same time
# Seconds of a processor that each of them spends on it: some turns of the system's scheduler, so that they are
# interrupted in the middle of a call even where one processor is all there is. And how long to wait for that at most.
BUSY, PATIENCE = 0.05, 10.0
ENOUGH, SLOW = 1 << 15, 0.005  # numbers in one input, or seconds of a call, of which nearly all is the kernel's own
COUNTS = (1, 2, 3, 8)  # of threads, where a kernel takes their number

Problems = Iterator[tuple[str, str]]


def raw_problems(kernel: PairKernel, at: Expected, way: Way, bench: Bench, case: Case) -> Problems:
    """The class of each mistake, and a sentence."""
    yield from _adding(kernel, at, way, bench, case)
    if kernel.example.device is None or kernel.example.device.type == "cpu":
        if not _triton_is_interpreted(kernel):
            yield from _at_once(kernel, at, way, bench, case)
        for direction, form in kernel.forms.items():
            for how, counted in _thread_counts(form, kernel):
                with counted as ways:
                    ran = kernel.run(at, way, only=direction, **ways)
                for problem in bench.compared(case, at, ran):
                    yield "wrong on another number of threads", f"{problem.sentence}, on {how}"


def _adding(kernel: PairKernel, at: Expected, way: Way, bench: Bench, case: Case) -> Problems:
    """On top of numbers that are there."""
    rng = np.random.default_rng(0)
    for direction, form in kernel.forms.items():
        names = (
            kernel.adds
            if direction == "backward" and kernel.adds
            else frozenset(kernel.example.gradients if direction == "backward" else at.outputs)
        )
        if "add" not in form.options and not (kernel.adds and direction == "backward"):
            continue
        start = {
            name: rng.normal(size=at.allowed[name].true.shape).astype(np.float32).astype(float)
            for name in sorted(names)
        }
        ran = kernel.run(at, way, start=start, add=names, only=direction)
        moved = {
            name: replace(
                at.allowed[name], true=at.allowed[name].true + start[name], spread=_more(at.allowed[name], start[name])
            )
            for name in names
        }
        for problem in bench.compared(
            case, replace(at, allowed=at.allowed | moved), Ran({n: ran.results[n] for n in names}, ran.dtypes)
        ):
            yield "wrong where it should add", f"{problem.sentence}, where it is added to what was there"


def _more(allowed: Allowed, start: Array) -> Array:
    return np.asarray(allowed.spread + 2.0**-24 * (np.abs(start) + np.abs(allowed.true)))


def _triton_is_interpreted(kernel: PairKernel) -> bool:
    """Triton's interpreter is for one thread."""
    return "triton" in sys.modules and kernel.example.torch


def _at_once(kernel: PairKernel, at: Expected, way: Way, bench: Bench, case: Case) -> Problems:
    """Several threads, each with numbers of its own, again and again: each must get what it gets alone. At sizes so
    large that calls meet; what the definition says there is not asked."""
    at, case = _enlarged(kernel, at, way, bench, case)
    rng = np.random.default_rng(1)
    leaves = kernel.example.leaves
    others = [
        replace(
            at,
            values=[
                rng.permuted(v) if leaf.floats and v.ndim else v for v, leaf in zip(at.values, leaves, strict=True)
            ],
        )
        for _ in range(AT_ONCE)
    ]
    for direction in kernel.directions:
        alone = [kernel.run(each, way, only=direction).results for each in others]
        differing: list[tuple[str, float]] = []

        def again(number: int, direction: str = direction, alone: Any = alone, differing: Any = differing) -> None:
            true = alone[number]

            def repeat(once: Callable[[], dict[str, Array]]) -> None:
                began, until = time.thread_time(), time.perf_counter() + PATIENCE
                while not differing and time.thread_time() - began < BUSY and time.perf_counter() < until:
                    for name, found in once().items():
                        if not np.array_equal(found, true[name], equal_nan=True):
                            off = float(np.abs(found - true[name]).max(initial=0)) / (
                                float(np.abs(true[name]).max(initial=0)) or 1.0
                            )
                            if not off < 2.0**-10:
                                differing.append((name, off))

            kernel.run(others[number], way, only=direction, repeat=repeat)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(again, range(AT_ONCE)))
        for name, off in differing[:1]:
            yield (
                "threads share memory",
                f"{name} differs by {off:.1e} of its largest element where {AT_ONCE} threads call the kernel at once, "
                f"each with numbers of its own: they share memory, at {case.title(kernel.example)}",
            )


def _enlarged(kernel: PairKernel, at: Expected, way: Way, bench: Bench, case: Case) -> tuple[Expected, Case]:
    while True:
        began = time.thread_time()
        kernel.run(at, way)
        slow = time.thread_time() - began > SLOW
        many = max(
            (np.size(v) for v, leaf in zip(at.values, kernel.example.leaves, strict=True) if leaf.array), default=0
        )
        dims = tuple((name, min(2 * size, max(size, bench.claims.largest))) for name, size in case.dims)
        if slow or many >= ENOUGH or dims == case.dims:
            return at, case
        larger = replace(case, dims=dims)
        shaped = shaped_at(bench, larger)
        if shaped is None:
            return at, case
        at, case = shaped, larger


def shaped_at(bench: Bench, case: Case) -> Expected | None:
    """Inputs of these sizes, and zeros in the place of gradients."""
    values = bench._values(case, case.seed(bench.seed))
    definition = bench.definition
    try:
        done = definition.compute(values, None, "float64", bench.options(case), gradients=False)
    except Exception:  # the definition's own way of saying no
        return None
    dys = bench.dy_of(case)(done.outputs)
    done.gradients = [np.zeros(values[index].shape) for index in definition.example.wrt]
    allowed = {name: Allowed(x, np.zeros(x.shape), 1) for name, x in done.results(definition.example).items()}
    return Expected(values, dys, allowed, done.raw_saved, len(done.saved))


def _thread_counts(form: Form, kernel: PairKernel) -> Iterator[tuple[str, Any]]:
    """Ways to run on so many threads: those that the kernel takes, torch's, Numba's."""
    if "threads" in form.options:
        yield from ((f"{count} of its threads", _given({"threads": count})) for count in COUNTS)
    if kernel.example.torch:
        torch = sys.modules["torch"]
        setting = partial(_set, torch.get_num_threads, torch.set_num_threads)
        yield from ((f"{count} of torch's threads", setting(count)) for count in COUNTS[:2])
    numba = sys.modules.get("numba")
    if numba is not None and getattr(form.function, "targetoptions", {}).get("parallel"):
        most = numba.config.NUMBA_NUM_THREADS
        setting = partial(_set, numba.get_num_threads, numba.set_num_threads)
        yield from ((f"{count} of Numba's threads", setting(count)) for count in COUNTS if count <= most)


@contextmanager
def _given(ways: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield ways


@contextmanager
def _set(read: Callable[[], int], write: Callable[[int], None], count: int) -> Iterator[dict[str, Any]]:
    before = read()
    write(count)
    try:
        yield {}
    finally:
        write(before)
