"""A step of a run, walked again for a page: the error of every call against the proven reference, its time against the
machine's ceiling, and the numbers of one call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

from tapeless.bench.profile import ceilings
from tapeless.check.lockstep import compare
from tapeless.errors import TapelessError
from tapeless.explorer.numbers import finite, told
from tapeless.explorer.tracing import MOST_FLOPS, Traced
from tapeless.model import GRADIENTS, Model
from tapeless.program.call import Call
from tapeless.train.history.record import header_of

TIMES = 5
PHASES = ("zero", *GRADIENTS)


def of_calls(traced: Traced, what: str) -> dict[str, Any]:
    """Of every call of the step: "error" or "time"."""
    found = {"error": _errors, "time": _times}[what](traced)
    listing = header_of(traced.model.program).listing
    return {"step": traced.standing.step, "what": what, "listing": listing, "calls": found}


@contextmanager
def _fed(traced: Traced, *twins: Model) -> Iterator[None]:
    """Its model, and twins of it, given the first batch of the step; afterwards, however it ends, each is where the
    step begins."""
    sides = (traced.model, *twins)
    try:
        for side in sides:
            side.draws = traced.update.draws
            side.feed(*traced.update.batches[0], traced.update.count)
        yield
    finally:
        for side in sides:
            side.draws = traced.update.draws


def _numbered(model: Model) -> list[tuple[int, Call]]:
    return [(number, call) for number, call in enumerate(model.program.calls) if call.phase in PHASES]


def _errors(traced: Traced) -> list[dict[str, Any]]:
    """Each call on the run's backend and on the reference in float64, which is given the same numbers to read."""
    model = traced.model
    if sum(call.flops for _, call in _numbered(model)) > MOST_FLOPS:
        raise TapelessError("the reference would take too long for a step of this size: `tapeless check` is for that.")
    twin = traced.probe.exact()
    found: dict[int, dict[str, Any]] = {}
    with _fed(traced, twin):
        for number, call in _numbered(model):
            arrays, true = model.engine.arguments(call), twin.engine.arguments(call)
            for each in compare(call, arrays, true, model.engine.backend, number):
                worst = found.get(number)
                if worst is None or not each.error <= worst["error"]:
                    found[number] = {
                        "call": number,
                        "argument": each.argument,
                        "error": finite(each.error),
                        "ok": each.ok,
                        "tolerance": each.tolerance,
                        "position": list(each.position),
                        "found": finite(each.found),
                        "true": finite(each.true),
                    }
    return list(found.values())


def _times(traced: Traced) -> list[dict[str, Any]]:
    """Beside what the machine can do at most, in the same minute: products as fast as its fastest, or memory as fast
    as a copy, whichever the call needs longer for."""
    model = traced.model
    if model.backend != "cpu":
        raise TapelessError(f"calls are timed on the cpu backend, and this run's is {model.backend}.")
    times: dict[int, list[float]] = {number: [] for number, _ in _numbered(model)}
    with _fed(traced):
        for _ in range(TIMES + 1):
            for number in times:
                start = time.perf_counter()
                for native in model.engine.bound[number][1]:
                    native()
                times[number].append(time.perf_counter() - start)
    peak = ceilings(768)
    found = []
    for number, call in _numbered(model):
        took = median(times[number][1:])
        products = call.flops / (1e9 * peak["peak_gflops"])
        moved = sum(each.nbytes for each in model.engine.arguments(call).values()) / (1e9 * peak["peak_gbytes"])
        least, by = max((products, "products"), (moved, "memory"))
        found.append({"call": number, "ms": 1000 * took, "share": min(1.0, least / took), "by": by})
    return found


def of_one(traced: Traced, number: int) -> dict[str, Any]:
    """A call's arrays at this step: a corner of each, and of what it writes how its values are spread."""
    model = traced.model
    if number >= len(model.program.calls):
        raise TapelessError(f"there is no call {number}: there are {len(model.program.calls)}.")
    phases = PHASES if model.program.calls[number].phase in PHASES else ()
    if not phases:
        raise TapelessError("clip and update are made once for all weights: Trace a weight shows their numbers.")
    wanted = model.program.calls[number]
    with _fed(traced):
        try:
            for call in model.engine.walk(*phases):
                if call is wanted:
                    break
            arguments = [
                told(each.name, each.mode, each.view.name, np.array(model.engine.read(each.view)))
                for each in wanted.arguments
            ]
        finally:
            for _ in model.engine.walk("zero"):  # what was walked halfway leaves no half a gradient behind
                pass
    listing = header_of(model.program).listing
    return {"step": traced.standing.step, "call": number, "listing": listing, "arguments": arguments}
