"""The kernels of the cpu backend on threads: an op by itself, at sizes that are shared out, again and again.

An example of an op is small, and a small call runs on one thread: what two threads do to each other never shows there.
So the op's own example is repeated along its letters until its kernels thread. One thread's results are held to the
reference; those of several threads too, and every run of them has to give the same bits. Whether threads meet is a
matter of luck, so what they would do to each other is looked for without them as well (`parallel_order.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapeless.backends.backend import bind_call
from tapeless.backends.cpu import CPU
from tapeless.check.examples import Example, dims_of, resized
from tapeless.check.finding import Finding
from tapeless.check.lockstep import Difference, compare
from tapeless.check.ops import Arrays, call_alone, long_examples, narrowed
from tapeless.check.parallel_order import collisions, is_parallel, run_in
from tapeless.kernels import cpu as cpu_kernels
from tapeless.kernels.native import Native
from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tapeless.program.call import Call

RUNS = 4  # of each threaded call
MOST = 8  # threads
# Many rows, wide rows, many sequences, one row. T, S and P grow by the same factor, and so do C and D: how they hang
# together stays.
SIZES = (
    {"R": 2053, "T": 70, "C": 64, "F": 60, "V": 300, "K": 500, "M": 40, "N": 300_003},
    {"R": 150, "T": 30, "C": 384, "F": 500, "V": 1100, "K": 90, "N": 150_001},
    {"B": 1100, "T": 3, "C": 64},
    {"R": 1, "C": 384, "F": 500, "V": 1100, "K": 1},
)
FOLLOWS = {"S": "T", "P": "T", "D": "C", "E": "C", "A": "C"}


def check_on_threads(name: str) -> Iterator[Finding]:
    """Nothing where there is one core: then nothing ever runs on threads."""
    place, count = f"{name} on cpu", min(MOST, cpu_kernels.cores())
    if count == 1:
        return
    shared_out: dict[str, bool] = {}
    try:
        for example in _examples(name):
            for direction in ("forward", "backward") if OPS[name].SPEC.backward else ("forward",):
                for adding in (False, True) if OPS[name].SPEC.signature(direction).adds else (False,):
                    call, true = call_alone(name, direction, example, adding)
                    yield from (Finding(place, "threads", each) for each in _faults(call, true, count, shared_out))
    except Exception as error:
        yield Finding(place, "threads", f"raises {type(error).__name__}: {error}")
    for kernel, was in shared_out.items():
        if not was:
            detail = f"{kernel} has a parallel loop, but stays on one thread at every size tried"
            yield Finding(place, "threads", detail)


def _examples(name: str) -> Iterator[Example]:
    letters = {letter for argument in OPS[name].SPEC.shapes for letter in OPS[name].SPEC.letters(argument)}
    if "U" in letters:  # matrices do not grow along with the memory that they lie in
        yield from long_examples(name)
        return
    for sizes in SIZES:
        if next(iter(sizes)) in letters or sizes is SIZES[0]:
            yield grown(name, sizes)


def grown(name: str, sizes: dict[str, int]) -> Example:
    """The op's own example, made larger along its letters up to these sizes."""
    rng = np.random.default_rng(3)
    own = OPS[name].example(rng)
    dims = dims_of(name, own)
    wanted = dict(dims)
    for letter, size in dims.items():
        leader = FOLLOWS.get(letter, letter)
        if leader in ("T", "C"):
            wanted[letter] = size * max(1, round(sizes.get(leader, 1) / dims.get(leader, size)))
        else:
            wanted[letter] = sizes.get(letter, size)
    return resized(name, own, wanted, rng)


def _faults(call: Call, true: Arrays, count: int, shared_out: dict[str, bool]) -> Iterator[str]:
    arrays = narrowed(call, true, CPU.traits.precisions[0])
    before = {key: array.copy() for key, array in arrays.items()}
    with on_threads(1):
        differences = list(compare(call, arrays, true, CPU))
    yield from (f"on one thread: {each}" for each in differences if not each.ok)
    with on_threads(count):
        runs = bind_call(call, arrays, CPU)
        threaded = False
        loops: list[Any] = [run for run in runs if is_parallel(run)]
        for run in loops:
            kernel, parallel = run.function.__name__, run.threads > 1
            shared_out[kernel] = shared_out.get(kernel, False) or parallel
            threaded = threaded or parallel
        if threaded:
            yield from _meetings(call, arrays, before, runs)
        first: dict[str, Array] = {}
        for number in range(RUNS if threaded else 1):
            _reset(arrays, before)
            for run in runs:
                run()
            for each in differences:
                found = arrays[each.argument]
                if number == 0:
                    first[each.argument] = found.copy()
                    yield from _far_off(each, found, true[each.argument], count)
                elif found.tobytes() != first[each.argument].tobytes():
                    where = int(np.argmax(found.reshape(-1) != first[each.argument].reshape(-1)))
                    values = first[each.argument].reshape(-1)[where], found.reshape(-1)[where]
                    yield (
                        f"{each.argument} of {call.title} differs from run to run on {count} threads: "
                        f"{values[0]!r}, then {values[1]!r}"
                    )
                    return


def _meetings(call: Call, arrays: Arrays, before: Arrays, runs: list[Native]) -> Iterator[str]:
    """Parts of a parallel loop that have something to do with one another."""
    names = {array.ctypes.data: key for key, array in arrays.items()}
    _reset(arrays, before)
    for run in runs:
        if is_parallel(run):
            for where in collisions(run, names):
                yield f"two parts of the parallel loop of {call.title} write to the same place in {where}"
                return
        run()
    results: list[dict[str, bytes]] = []
    for order in ("forwards", "backwards", "shuffled"):
        _reset(arrays, before)
        run_in(order, runs)
        results.append({each.name: arrays[each.name].tobytes() for each in call.writes if each.name != "logits"})
    for key, bits in results[0].items():
        if any(other[key] != bits for other in results[1:]):
            yield f"{key} of {call.title} depends on the order in which the parts of a parallel loop are done"
            return


def _reset(arrays: Arrays, before: Arrays) -> None:
    for key, array in before.items():
        arrays[key][...] = array


def _far_off(alone: Difference, found: Array, true: Array, count: int) -> Iterator[str]:
    scale = float(np.abs(true).max()) or 1.0
    error = float(np.abs(found.astype(np.float64) - true).max()) / scale
    if not error <= alone.tolerance:
        yield (
            f"{alone.argument} of {alone.call.title} is off by {error:.1e} of its largest element on {count} threads, "
            f"by {alone.error:.1e} on one (allowed {alone.tolerance:.1e})"
        )


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = cpu_kernels.threads()
    cpu_kernels.set_threads(count)
    try:
        yield
    finally:
        cpu_kernels.set_threads(before)
