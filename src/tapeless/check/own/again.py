"""A kernel again and again: the same bits every time, on several threads at once, and on other numbers of threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tapeless.check.own.bench import VANISHED, At, Bench, compare, run
from tapeless.check.own.callables import Pair
from tapeless.check.own.calling import Form
from tapeless.check.own.definition import is_float
from tapeless.check.own.trial import Arrays
from tapeless.check.own.walk import unsteady

AT_ONCE, TURNS = 4, 8  # threads that call the kernel at the same time, and how often each
COUNTS = (1, 2, 3, 8)  # of threads, where a kernel takes their number


def try_again(bench: Bench, direction: str, at: At, first: Arrays) -> None:
    """The same call once more, on several threads at once, and on other numbers of threads."""
    if bench.claims.repeatable:
        again = [run(bench, direction, at).results for _ in range(2)]
        for sentence in unsteady(first, again):
            bench.note("repeats", at.case, f"{sentence.removesuffix('.')}, at {at.case}", at)
            return
    if at.case != bench.sizes[0]:
        return
    if all(device is None or device.type == "cpu" for device in bench.definition.pair.devices):
        _try_at_once(bench, direction, at)
    for how, counted in _thread_counts(bench.caller.forms[direction], bench.definition.pair):
        with counted as ways:
            compare(bench, "threads", direction, at, run(bench, direction, at, **ways).results, how=f", on {how}")


def _try_at_once(bench: Bench, direction: str, at: At) -> None:
    """Several threads, each with numbers of its own: each must get what it gets alone."""
    rng = bench.rng(f"at once {at.case}")
    others = [
        replace(at, inputs=[rng.permuted(x) if is_float(x) and x.ndim else x for x in at.inputs])
        for _ in range(AT_ONCE)
    ]
    alone = [run(bench, direction, each).results for each in others]

    def again(number: int) -> Arrays:
        return run(bench, direction, others[number % AT_ONCE]).results

    with ThreadPoolExecutor(AT_ONCE) as pool:
        together = list(pool.map(again, range(AT_ONCE * TURNS)))
    for number, results in enumerate(together):
        for name, found in results.items():
            true = alone[number % AT_ONCE][name]
            off = float(np.abs(found - true).max(initial=0)) / (float(np.abs(true).max(initial=0)) or 1.0)
            if not (found.tobytes() == true.tobytes() if bench.claims.repeatable else off < VANISHED):
                bench.note(
                    "threads",
                    at.case,
                    f"{name} differs by {off:.1e} of its largest element where {AT_ONCE} threads call the kernel at "
                    f"once, each with numbers of its own: they share memory, at {at.case}",
                    at,
                )
                return


def _thread_counts(form: Form, pair: Pair) -> Iterator[tuple[str, Any]]:
    """Ways to run on so many threads: those that the kernel takes, torch's, Numba's."""
    if "threads" in form.options:
        yield from ((f"{count} of its threads", _given({"threads": count})) for count in COUNTS)
    if pair.tensors:
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
