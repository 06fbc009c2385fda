"""Somebody's float32 kernel for an op of their own, held to a definition in float64.

At the sizes of the example and at others: each result within lockstep's tolerance, on memory that is watched, written
and added, again and again and on several threads at once. Then over the whole range of the type, and on NaN.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

import numpy as np

from tapeless.check.finding import Judgement
from tapeless.check.guarded import GARBAGE, left_unwritten, unsteady, where_of
from tapeless.check.lockstep import farthest
from tapeless.check.own.cases import (
    SMALL,
    At,
    Definition,
    OwnTrial,
    defined,
    defined_at,
    evaluated_at,
    is_float,
    letters_of,
    named,
    narrowed_and_back,
    other_sizes,
    resized,
    run,
    shaped_at,
    summed,
    title,
)
from tapeless.check.own.gradient import Report
from tapeless.check.own.harness import Arrays, Caller, Form, KernelRaisedError, Pair, RefusalError, form_of, poisoned
from tapeless.check.ranges import fitting, judge, kinds_of, unnoticed
from tapeless.errors import TapelessError
from tapeless.ops.contract import NONE, Array
from tapeless.shown import Told

VANISHED = 2.0**-10  # of what a result is at the example: so small by cancellation
AT_ONCE = 4  # threads that call the kernel at the same time
# Seconds of a processor that each of them spends on it: some turns of the system's scheduler, so that they are
# interrupted in the middle of a call even where one processor is all there is. And how long to wait for that at most.
BUSY, PATIENCE = 0.05, 10.0
ENOUGH, SLOW = 1 << 15, 0.005  # numbers in one input, or seconds of a call, of which nearly all is the kernel's own
COUNTS = (1, 2, 3, 8)  # of threads, where a kernel takes their number
# Memory first: whatever else is said may come of it.
CHECKS = ("call", "memory", "sizes", "adding", "repeats", "threads", "strides", "autograd", "range", "NaN")
VERDICTS = {
    "right": "right: in float32 the kernel is what its definition says.",
    "wrong": "wrong: the kernel is not what its definition says.",
    "cannot tell": "cannot tell: the kernel agrees with its definition, but whether that is right is not known.",
    "refused": "refused:",
}


@dataclass(frozen=True, repr=False)
class Wrong(Told):
    """One thing that is wrong: by which check, at which case, and the numbers it was seen on."""

    check: str  # one of CHECKS
    case: str
    sentence: str
    inputs: tuple[Any, ...] = ()
    dy: tuple[Array, ...] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


@dataclass(frozen=True, repr=False)
class Float32Report(Judgement):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    verdict: str  # "right", "wrong", "cannot tell" or "refused"
    reason: str  # of a refusal; else empty
    definition: Report | None  # the proof of the definition's own backward, where it has one
    wrong: tuple[Wrong, ...] = ()
    tried: tuple[str, ...] = ()  # what was tried, one line each

    @property
    def ok(self) -> bool:
        """Whether the kernel is right."""
        return self.verdict == "right"

    def __str__(self) -> str:
        lines = [f"{VERDICTS[self.verdict]} {self.reason}".rstrip()]
        if self.definition is not None and not self.definition.ok:
            lines += [
                f"  the definition is {line}" if not at else f"  {line}"
                for at, line in enumerate(str(self.definition).splitlines())
            ]
        for _, group in groupby(sorted(self.wrong, key=_kind), key=_kind):
            first, *others = group
            more = f" ({len(others)} more like it)" if others else ""
            lines += [f"  {first}{more}", f"    again: check.op(…, case={first.case!r})"]
        return "\n".join([*lines, *(f"  {each}" for each in self.tried)])


def _kind(wrong: Wrong) -> tuple[int, str]:
    return CHECKS.index(wrong.check), wrong.sentence.split(" ", 1)[0]


@dataclass(frozen=True)
class Claims:
    """What is said of a kernel, and tried."""

    writes: bool | None = None  # into its outputs, or it returns them; None: seen from its arguments
    adds: frozenset[str] = NONE  # gradients that it always adds to
    shapes: Sequence[str] | None = None  # the axes of each input by name; None: by their sizes
    largest: int = 1031  # the longest axis that is tried
    within: float = inf  # no numbers beyond this are tried, nor below 1 / this
    strides: bool = False  # it takes arrays that are not contiguous
    repeatable: bool = True  # the same bits every time
    case: str | None = None  # only this one


@dataclass
class Bench:
    """A definition, a kernel, and what has been found so far."""

    definition: Definition
    caller: Caller
    claims: Claims
    seed: int
    wrong: list[Wrong] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # directions that write where they should not: not called again
    shares: list[tuple[float, str]] = field(default_factory=list)  # of what is allowed, and of which result
    usual: dict[str, float] = field(default_factory=dict)  # the largest element of each result at the example
    sizes: list[str] = field(default_factory=list)
    cases: int = 0
    seen: bool = False  # the one case that is asked for
    worst_range: tuple[float, str] = (0.0, "")

    @property
    def directions(self) -> list[str]:
        return [direction for direction in self.caller.forms if direction not in self.broken]

    def rng(self, case: str) -> np.random.Generator:
        """Each case draws its own numbers, so that one alone sees what it saw among the others."""
        return np.random.default_rng([self.seed, *case.encode()])

    def asked(self, case: str) -> bool:
        if self.claims.case is None:
            return True
        self.seen = self.seen or self.claims.case == case
        return self.claims.case == case

    def note(self, check: str, case: str, sentence: str, at: At | None = None) -> None:
        inputs, dy = ((), ()) if at is None else (tuple(at.inputs), tuple(at.dy.values()))
        self.wrong.append(Wrong(check, case, sentence, inputs, dy))

    def note_at(self, check: str, at: At, sentence: str) -> None:
        self.note(check, at.case, f"{sentence.removesuffix('.')}, at {at.case}", at)

    def compare_result(
        self, check: str, at: At, name: str, found: Array, true: Array, moved: list[Array], read: list[Any], how: str
    ) -> None:
        """Compare one result with what the definition says, within what `moved` and the numbers that are read allow."""
        # At some sizes a result all but vanishes, as the gradient of a norm over one channel: that is no smaller error.
        usual = self.usual.setdefault(name, float(np.abs(true).max())) if check != "autograd" else 0.0
        least = usual if float(np.abs(true).max()) < VANISHED * usual else 0.0
        error, allowed, where = farthest(found, true, moved, "float32", summed(true, read), least)
        if check == "sizes":
            self.shares.append((error / allowed, f"{name} at {at.case}"))
        if not error <= allowed:
            place = f" at {where}" if where else ""
            self.note_at(
                check,
                at,
                f"{name} is {float(found[where])!r}{place}{how}, the definition says {float(true[where])!r} (off by "
                f"{error:.1e} of its largest element, allowed {allowed:.1e})",
            )

    def compare(
        self, check: str, direction: str, at: At, results: Arrays, start: Arrays | None = None, how: str = ""
    ) -> None:
        """Compare all results of a call, which may stand on top of what was there."""
        for name, found in results.items():
            beside = 0.0 if start is None or name not in start else start[name]
            true, *moved = [each[name] + beside for each in (at.true[direction], *at.moved[direction])]
            if true.size:
                self.compare_result(check, at, name, found, true, moved, at.read(direction), how)


Extra = Callable[["Bench", At], None]  # what else is asked of a kernel at one set of inputs


def prove_kernel(
    pair: Pair,
    wrt: tuple[int, ...],
    kernel: Sequence[Any],
    claims: Claims,
    seed: int,
    extras: Sequence[Extra] = (),
    itself: bool = False,
) -> Float32Report:
    """The verdict on a kernel: a pair of functions, either of them None. `itself`: it is also the definition."""
    rounded = tuple(map(narrowed_and_back, pair.inputs))
    pair = Pair(pair.forward, pair.backward, rounded, pair.devices, pair.names, pair.saved)
    proof: Report | None = None
    try:
        definition, proof = defined(pair, wrt, seed, gradients=kernel[1] is not None)
        if proof is not None and proof.verdict in ("wrong", "refused"):
            return Float32Report("refused", "the definition does not hold, and nothing is held to it.", proof)
        definition = replace(definition, itself=itself)
        bench = Bench(definition, _caller(definition, kernel, claims), claims, seed)
        _try_all(bench, extras)
        if claims.case is not None and not bench.seen:
            raise TapelessError(f"there is no case {claims.case!r}: give it as a report's `again:` says it.")
    except RefusalError as refusal:
        return Float32Report("refused", str(refusal), proof)
    verdict = "wrong" if bench.wrong else "right" if proof is None or proof.ok else "cannot tell"
    return Float32Report(verdict, "", proof, tuple(bench.wrong), tuple(_tried(bench, proof)))


def _caller(definition: Definition, kernel: Sequence[Any], claims: Claims) -> Caller:
    outputs, kept = definition.outputs(definition.pair.inputs)
    names, saved = list(definition.names), list(named("saved", kept)) if definition.pair.saved else []
    gradients = [f"d{names[index]}" for index in definition.wrt]
    unknown = claims.adds - set(gradients)
    if unknown:
        raise TapelessError(f"adds names {min(unknown)!r}, which is no gradient: choose among {', '.join(gradients)}.")
    forms: dict[str, Form] = {}
    y, dy = list(named("y", outputs)), list(named("dy", outputs))
    for direction, function in zip(("forward", "backward"), kernel, strict=True):
        if function is None:
            continue
        # One that writes is given every array by itself; one that returns, dy and what is saved as one argument each.
        results, read = ([*y, *saved], names) if direction == "forward" else (gradients, [*dy, *saved, *names])
        returning = names if direction == "forward" else ["dy", *(["saved"] if definition.pair.saved else []), *names]
        form = form_of(direction, function, [*results, *read], returning, claims.writes)
        forms[direction] = form
    if claims.adds and not ("backward" in forms and forms["backward"].writes):
        raise TapelessError("adds is for a backward that writes into its outputs: this one returns them.")
    return Caller(definition.pair, definition.wrt, forms, claims.adds)


def _try_all(bench: Bench, extras: Sequence[Extra]) -> None:
    example = list(bench.definition.pair.inputs)
    letters, dims = letters_of(example, bench.claims.shapes)
    first = f"{title(bench.definition.names, example)}"
    if bench.asked(first):
        _try_at(bench, first, example, extras)
    for sizes in other_sizes(letters, dims, bench.claims.largest, bench.definition.most):
        case = title(bench.definition.names, resized(example, letters, sizes, np.random.default_rng(0)))
        if case == first or case in bench.sizes or not bench.asked(case):
            continue
        inputs = resized(example, letters, sizes, bench.rng(case))
        if defined_at(bench.definition, inputs):
            _try_at(bench, case, inputs, ())
    small = resized(example, letters, {letter: min(size, SMALL) for letter, size in dims.items()}, bench.rng("range"))
    for direction in bench.directions if not bench.wrong else ():  # what is wrong on usual numbers is so on all
        _try_range(bench, direction, small)


def _try_at(bench: Bench, case: str, inputs: list[Any], extras: Sequence[Extra]) -> None:
    at = evaluated_at(bench.definition, bench.caller.forms, case, inputs, bench.rng(case))
    bench.sizes.append(case)
    for direction in bench.directions:
        try:
            _try_direction(bench, direction, at)
        except KernelRaisedError as error:
            bench.note_at("call", at, str(error))
            bench.broken.add(direction)
    for extra in extras:
        if bench.directions == list(bench.caller.forms):
            extra(bench, at)


def _try_direction(bench: Bench, direction: str, at: At) -> None:
    form, adds = bench.caller.forms[direction], bench.claims.adds if direction == "backward" else NONE
    first = run(bench.caller, direction, at)
    if first.faults:
        for fault in first.faults:
            bench.note_at("memory", at, fault)
        bench.broken.add(direction)
        return
    if form.writes:
        other = run(bench.caller, direction, at, fill=GARBAGE)
        for name, found in first.results.items():
            for sentence in left_unwritten(name, found, other.results[name]) if name not in adds else ():
                bench.note_at("memory", at, f"the kernel's {direction}: {sentence}")
                bench.broken.add(direction)
    else:
        with poisoned(bench.definition.pair.tensors):
            fresh = run(bench.caller, direction, at).results
        for name, found in fresh.items():
            lost = np.isnan(found) & np.isfinite(first.results[name])
            if lost.any():
                bench.note_at("memory", at, f"the kernel's {direction}: it does not write {name} at {where_of(lost)}")
                bench.broken.add(direction)
    if direction in bench.broken:
        return
    bench.compare("sizes", direction, at, first.results)
    if bench.claims.strides:
        bench.compare("strides", direction, at, run(bench.caller, direction, at, gaps=True).results)
    if "add" in form.options or adds:
        _try_adding(bench, direction, at, adds or frozenset(at.true[direction]))
    try_again(bench, direction, at, first.results)


def _try_adding(bench: Bench, direction: str, at: At, names: frozenset[str]) -> None:
    """On top of numbers that are there."""
    rng = bench.rng(f"adding {at.case}")
    start = {
        name: np.asarray(rng.normal(size=at.true[direction][name].shape).astype(np.float32), np.float64)
        for name in sorted(names)
    }
    ran = run(bench.caller, direction, at, start=start, add=names)
    bench.compare("adding", direction, at, ran.results, start, " where it is added to what was there")


def _try_range(bench: Bench, direction: str, inputs: list[Any]) -> None:
    if not defined_at(bench.definition, inputs):
        inputs = list(bench.definition.pair.inputs)
    outputs, _ = bench.definition.outputs(inputs)
    rng = bench.rng(f"range of {direction}")
    trial = OwnTrial(bench.definition, bench.caller, direction, inputs, [rng.normal(size=x.shape) for x in outputs])
    try:
        for kind in kinds_of(trial):
            case_title = f"{direction}, {kind[0]}"
            if not bench.asked(case_title):
                continue
            trial.rng = bench.rng(f"moves, {case_title}")
            for case in fitting(trial, [kind], bench.rng(case_title)):
                if not all(_within(each, bench.claims.within) for each in case.numbers.values()):
                    continue
                bench.cases += 1
                trial.forgiven(case)
                with np.errstate(all="ignore"):
                    errors = judge(case, trial.found(case.numbers))
                for each in errors:
                    bench.worst_range = max(bench.worst_range, (each.share, f"{each.result} at {case_title}"))
                    if not each.ok:
                        off = f"off by {each.error:.3g} roundings, allowed {each.allowed:.3g}"
                        at = At(case_title, *trial.taken(case.numbers), {}, {}, {})
                        bench.note(
                            "range",
                            case_title,
                            f"{each.result} is {each.found!r} at {each.position}, the definition says {each.true!r} "
                            f"({off}), with {kind[0]}",
                            at,
                        )
        nan = f"{direction}, NaN"
        if bench.asked(nan):
            _try_nan(bench, trial, nan)
    except KernelRaisedError as error:
        bench.note("call", f"{direction}, range", f"{error}, on extreme numbers")


def _try_nan(bench: Bench, trial: OwnTrial, case: str) -> None:
    """The complex step says NaN of every gradient where an input has one, also of those that do not depend on it: then
    only dy is asked about, in which every gradient is linear."""
    if bench.definition.way != "complex step" or trial.direction == "forward":
        for lost in unnoticed(trial, bench.rng(case)):
            bench.note("NaN", case, lost.removeprefix(f"{trial.name}.{trial.direction}: "))
        return
    rng = bench.rng(case)
    for argument in trial.incoming:
        numbers = trial.usual(rng)
        place = tuple(int(rng.integers(0, size)) for size in numbers[argument].shape)
        numbers[argument][place] = np.nan
        if not any(np.isnan(each).any() for each in trial.found(numbers).values()):
            bench.note("NaN", case, f"a NaN at {place} of {argument} is not seen in any gradient")


def try_again(bench: Bench, direction: str, at: At, first: Arrays) -> None:
    """The same call once more, on several threads at once, and on other numbers of threads."""
    if bench.claims.repeatable:
        again = [run(bench.caller, direction, at).results for _ in range(2)]
        for sentence in unsteady(first, again):
            bench.note_at("repeats", at, sentence)
            return
    if at.case != bench.sizes[0]:
        return
    if all(device is None or device.type == "cpu" for device in bench.definition.pair.devices):
        _try_at_once(bench, direction, at)
    for how, counted in _thread_counts(bench.caller.forms[direction], bench.definition.pair):
        with counted as ways:
            bench.compare("threads", direction, at, run(bench.caller, direction, at, **ways).results, how=f" on {how}")


def _try_at_once(bench: Bench, direction: str, at: At) -> None:
    """Several threads, each with numbers of its own, again and again: each must get what it gets alone."""
    rng = bench.rng(f"at once {at.case}")
    at, sizes = _enlarged(bench, direction, at, rng)
    others = [
        replace(at, inputs=[rng.permuted(x) if is_float(x) and x.ndim else x for x in at.inputs])
        for _ in range(AT_ONCE)
    ]
    alone = [run(bench.caller, direction, each).results for each in others]
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

        run(bench.caller, direction, others[number], repeat=repeat)

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
        run(bench.caller, direction, at)
        slow = time.thread_time() - began > SLOW
        larger = {letter: min(2 * size, max(size, bench.claims.largest)) for letter, size in dims.items()}
        many = max((x.size for x in at.inputs if isinstance(x, np.ndarray)), default=0) >= ENOUGH
        inputs = resized(at.inputs, letters, larger, rng)
        if many or slow or larger == dims or not defined_at(definition, inputs):
            return at, title(definition.names, at.inputs)
        dims = larger
        at = shaped_at(definition, at.case, inputs, rng)


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


def _within(value: Array, most: float) -> bool:
    size = np.abs(value[value != 0]) if value.size else value
    return not size.size or (float(size.max()) <= most and float(size.min()) >= 1 / most)


WAYS = {
    "backward": "its own backward, proven",
    "autograd": "torch's autograd in float64",
    "complex step": "the complex step in float64",
}


def _tried(bench: Bench, proof: Report | None) -> Iterator[str]:
    way = WAYS.get(bench.definition.way)
    if way:
        proven = f" (worst relative error {max(x.error for x in proof.inputs):.0e})" if proof and proof.inputs else ""
        yield f"held to: the definition in float64, its gradients by {way}{proven}"
    if bench.shares:
        yield f"tried: {len(bench.sizes)} sizes, {len(bench.shares)} results{_worst(*max(bench.shares))}"
    if bench.cases:
        beyond = "" if bench.claims.within < inf else ", zeros, denormals and 1e30 among them"
        yield f"tried: {bench.cases} cases of extreme numbers{beyond}{_worst(*bench.worst_range)}"
        if bench.claims.within == inf and any(each.check == "range" for each in bench.wrong):
            yield "a kernel that need not take such numbers says so: within=1e10 keeps to those between 1e-10 and 1e10"


def _worst(share: float, where: str) -> str:
    return f", the worst at {share:.0%} of what is allowed ({where})" if share <= 1 and where else ""
