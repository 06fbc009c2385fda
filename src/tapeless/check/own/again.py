"""A kernel again and again: the same bits every time, on several threads at once, and on other numbers of threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tapeless.check.own.bench import VANISHED, At, Bench, compare, defined_at, run
from tapeless.check.own.callables import Pair
from tapeless.check.own.calling import Form
from tapeless.check.own.definition import is_float
from tapeless.check.own.sizes import letters_of, resized, title
from tapeless.check.own.trial import Arrays, named
from tapeless.check.own.walk import unsteady

AT_ONCE = 4  # threads that call the kernel at the same time
# Seconds of a processor that each of them spends on it: some turns of the system's scheduler, so that they are
# interrupted in the middle of a call even where one processor is all there is. And how long to wait for that at most.
BUSY, PATIENCE = 0.05, 10.0
MANY, SLOW = 1 << 15, 0.005  # numbers in one input, or seconds of a call, of which nearly all is the kernel's own
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
    """Several threads, each with numbers of its own, again and again: each must get what it gets alone."""
    rng = bench.rng(f"at once {at.case}")
    at, sizes = _enlarged(bench, direction, at, rng)
    others = [
        replace(at, inputs=[rng.permuted(x) if is_float(x) and x.ndim else x for x in at.inputs])
        for _ in range(AT_ONCE)
    ]
    alone = [run(bench, direction, each).results for each in others]
    differing: list[tuple[str, float]] = []

    def again(number: int) -> None:
        true = alone[number]

        def repeat(once: Callable[[], Arrays]) -> None:
            began, until = time.thread_time(), time.perf_counter() + PATIENCE
            while not differing and time.thread_time() - began < BUSY and time.perf_counter() < until:
                for name, found in once().items():
                    if found.tobytes() != true[name].tobytes():
                        off = float(np.abs(found - true[name]).max(initial=0))
                        off /= float(np.abs(true[name]).max(initial=0)) or 1.0
                        if bench.claims.repeatable or not off < VANISHED:
                            differing.append((name, off))

        run(bench, direction, others[number], repeat=repeat)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(again, range(AT_ONCE)))
    for name, off in differing[:1]:
        bench.note(
            "threads",
            at.case,
            f"{name} differs by {off:.1e} of its largest element where {AT_ONCE} threads call the kernel at "
            f"once, each with numbers of its own: they share memory, at {sizes}",
            at,
        )


def _enlarged(bench: Bench, direction: str, at: At, rng: np.random.Generator) -> tuple[At, str]:
    """So large that calls take long enough to meet; what the definition says there is not asked, but for its shapes."""
    definition = bench.definition
    letters, dims = letters_of(at.inputs, bench.claims.shapes)
    while True:
        began = time.thread_time()
        run(bench, direction, at)
        slow = time.thread_time() - began > SLOW
        larger = {letter: min(2 * size, max(size, bench.claims.largest)) for letter, size in dims.items()}
        many = max((x.size for x in at.inputs if isinstance(x, np.ndarray)), default=0) >= MANY
        inputs = resized(at.inputs, letters, larger, rng)
        if many or slow or larger == dims or not defined_at(definition, inputs):
            return at, title(definition.names, at.inputs)
        dims = larger
        outputs, kept = definition.outputs(inputs)
        dy = {name: rng.normal(size=each.shape) for name, each in named("dy", outputs).items()}
        saved = named("saved", kept) if definition.pair.saved else {}
        gradients = {f"d{definition.names[index]}": np.zeros(inputs[index].shape) for index in definition.wrt}
        at = At(at.case, inputs, dy, {"forward": named("y", outputs) | saved, "backward": gradients}, {}, saved)


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
