"""Somebody's float32 kernel for an op of their own, held to a definition in float64.

At the sizes of the example and at others: each result within lockstep's tolerance, on memory that is watched, written
and added, again and again and on several threads at once. Then over the whole range of the type, and on NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from tapeless.check.lockstep import MANY, MOVES, farthest
from tapeless.check.own.callables import Pair, RefusalError
from tapeless.check.own.calling import Caller, Form, KernelRaisedError, Ran, form_of, poisoned
from tapeless.check.own.definition import Definition, defined, is_float
from tapeless.check.own.proof import Report
from tapeless.check.own.report import Float32Report, Wrong
from tapeless.check.own.sizes import SMALL, letters_of, other_sizes, resized, summed, title
from tapeless.check.own.trial import Arrays, OwnTrial, named, saved_of
from tapeless.check.own.walk import GARBAGE, left_unwritten, unsteady, where_of
from tapeless.check.ranges import fitting, judge, kinds_of, unnoticed
from tapeless.errors import TapelessError
from tapeless.ops.contract import NONE, Array

ROUNDING = 2.0**-24
VANISHED = 2.0**-10  # of what a result is at the example: so small by cancellation
AT_ONCE, TURNS = 4, 8  # threads that call the kernel at the same time, and how often each
COUNTS = (1, 2, 3, 8)  # of threads, where a kernel takes their number

Extra = Callable[["Bench", str, list[Any]], Iterator[Wrong]]  # what else is asked of a kernel at one set of inputs


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
    worst_range: tuple[float, str] = (0.0, "")

    @property
    def directions(self) -> list[str]:
        return [direction for direction in self.caller.forms if direction not in self.broken]

    def rng(self, case: str) -> np.random.Generator:
        """Each case draws its own numbers, so that one alone sees what it saw among the others."""
        return np.random.default_rng([self.seed, *case.encode()])

    def asked(self, case: str) -> bool:
        return self.claims.case is None or self.claims.case == case

    def note(self, check: str, case: str, sentence: str, at: At | None = None) -> None:
        inputs, dy = ((), ()) if at is None else (tuple(at.inputs), tuple(at.dy.values()))
        self.wrong.append(Wrong(check, case, sentence, inputs, dy))


@dataclass(frozen=True)
class At:
    """One set of inputs: what the definition says there, and what it says where the inputs are off by a rounding."""

    case: str
    inputs: list[Any]
    dy: Arrays
    true: dict[str, Arrays]  # by direction; what the forward saves among it
    moved: dict[str, list[Arrays]]
    saved: Arrays

    def read(self, direction: str) -> list[Any]:
        return [*self.inputs, *(self.dy.values() if direction == "backward" else ())]


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
    rounded = tuple(map(_narrow, pair.inputs))
    pair = Pair(pair.forward, pair.backward, rounded, pair.devices, pair.names, pair.saved)
    proof: Report | None = None
    try:
        definition, proof = defined(pair, wrt, seed, gradients=kernel[1] is not None)
        if proof is not None and proof.verdict in ("wrong", "refused"):
            return Float32Report("refused", "the definition does not hold, and nothing is held to it.", proof)
        definition = replace(definition, itself=itself)
        bench = Bench(definition, _caller(definition, kernel, claims), claims, seed)
        _try_all(bench, extras)
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
        results, read = ([*y, *saved], names) if direction == "forward" else (gradients, [*dy, *saved, *names])
        form = form_of(direction, function, results, read, claims.writes)
        if not form.writes:  # there, dy and what is saved are one argument each, however many they hold
            form = form_of(
                direction,
                function,
                results,
                names if direction == "forward" else ["dy", *saved[:1], *names],
                claims.writes,
            )
        forms[direction] = form
    if claims.adds and not ("backward" in forms and forms["backward"].writes):
        raise TapelessError("adds is for a backward that writes into its outputs: this one returns them.")
    return Caller(definition.pair, definition.wrt, forms, claims.adds)


# What is tried


def _try_all(bench: Bench, extras: Sequence[Extra]) -> None:
    example = list(bench.definition.pair.inputs)
    letters, dims = letters_of(example, bench.claims.shapes)
    first = f"{title(bench.definition.names, example)}"
    if bench.asked(first):
        _try_at(bench, first, example, extras)
    for sizes in other_sizes(letters, dims, bench.claims.largest):
        case = title(bench.definition.names, resized(example, letters, sizes, np.random.default_rng(0)))
        if case == first or case in bench.sizes or not bench.asked(case):
            continue
        inputs = resized(example, letters, sizes, bench.rng(case))
        if bench.definition.takes(inputs) and _defined_at(bench.definition, inputs):
            _try_at(bench, case, inputs, ())
    small = resized(example, letters, {letter: min(size, SMALL) for letter, size in dims.items()}, bench.rng("range"))
    for direction in bench.directions if not bench.wrong else ():  # what is wrong on usual numbers is so on all
        _try_range(bench, direction, small)


def _defined_at(definition: Definition, inputs: list[Any]) -> bool:
    """Whether the definition takes these sizes at all: an index may be out of them, a head may not divide them."""
    try:
        with np.errstate(all="ignore"):
            outputs, _ = definition.outputs(inputs)
    except RefusalError:
        raise
    except Exception:  # the definition's own way of saying no
        return False
    return any(each.size for each in outputs) and all(np.isfinite(each).all() for each in outputs)


def _at(bench: Bench, case: str, inputs: list[Any]) -> At:
    definition, rng = bench.definition, bench.rng(case)
    outputs, kept = definition.outputs(inputs)
    dy = {
        name: np.asarray(rng.normal(size=each.shape).astype(np.float32), np.float64)
        for name, each in named("dy", outputs).items()
    }
    saved = named("saved", kept) if definition.pair.saved else {}
    true: dict[str, Arrays] = {}
    moved: dict[str, list[Arrays]] = {}
    for direction in bench.caller.forms:
        many = sum(each.size for each in inputs if is_float(each)) > (500 if definition.way == "complex step" else MANY)
        true[direction] = _said(definition, direction, inputs, dy)
        moved[direction] = []
        for _ in range(2 if many else MOVES):
            off, dy_off = moved_by_a_rounding(inputs, list(dy.values()), rng)
            moved[direction].append(_said(definition, direction, off, dict(zip(dy, dy_off, strict=True))))
    return At(case, inputs, dy, true, moved, saved)


def _narrow(value: Any) -> Any:
    return value.astype(np.float32).astype(np.float64) if is_float(value) else value


def _said(definition: Definition, direction: str, inputs: Sequence[Any], dy: Arrays) -> Arrays:
    if direction == "forward":
        outputs, kept = definition.outputs(inputs)
        return named("y", outputs) | (named("saved", kept) if definition.pair.saved else {})
    found = definition.gradients(inputs, list(dy.values()))
    return {f"d{definition.names[index]}": each for index, each in zip(definition.wrt, found, strict=True)}


def moved_by_a_rounding(
    inputs: Sequence[Any], dy: Sequence[Array], rng: np.random.Generator
) -> tuple[list[Any], list[Array]]:
    return [_off(value, rng) for value in inputs], [_off(value, rng) for value in dy]


def _off(value: Any, rng: np.random.Generator) -> Any:
    return np.asarray(value * (1 + ROUNDING * rng.choice((-1.0, 1.0), value.shape))) if is_float(value) else value


def _try_at(bench: Bench, case: str, inputs: list[Any], extras: Sequence[Extra]) -> None:
    at = _at(bench, case, inputs)
    bench.sizes.append(case)
    for direction in bench.directions:
        try:
            _try_direction(bench, direction, at)
        except KernelRaisedError as error:
            bench.note("call", case, f"{error}, at {case}", at)
            bench.broken.add(direction)
    for extra in extras:
        if bench.directions == list(bench.caller.forms):
            bench.wrong += extra(bench, case, inputs)


def run(bench: Bench, direction: str, at: At, **ways: Any) -> Ran:
    """One call of the kernel; a backward after the forward that saves for it."""
    caller, true = bench.caller, at.true[direction]
    if direction == "forward":
        return caller.forward(at.inputs, {n: x for n, x in true.items() if n not in at.saved}, at.saved, **ways)
    keeps: Any = at.saved
    if at.saved and "forward" in caller.forms:
        like = {name: x for name, x in at.true["forward"].items() if name not in at.saved}
        ran = caller.forward(at.inputs, like, at.saved)
        keeps = saved_of(ran.results, ran.saved, at.saved, caller)
    return caller.backward(at.inputs, at.dy, keeps, true, **caller.plainly(true) | ways)


def _try_direction(bench: Bench, direction: str, at: At) -> None:
    form, adds = bench.caller.forms[direction], bench.claims.adds if direction == "backward" else NONE
    first = run(bench, direction, at)
    if first.faults:
        for fault in first.faults:
            bench.note("memory", at.case, f"{fault.removesuffix('.')}, at {at.case}", at)
        bench.broken.add(direction)
        return
    if form.writes:
        other = run(bench, direction, at, fill=GARBAGE)
        for name, found in first.results.items():
            for sentence in left_unwritten(name, found, other.results[name]) if name not in adds else ():
                bench.note(
                    "memory", at.case, f"the kernel's {direction}: {sentence.removesuffix('.')}, at {at.case}", at
                )
                bench.broken.add(direction)
    else:
        with poisoned(bench.definition.pair.tensors):
            fresh = run(bench, direction, at).results
        for name, found in fresh.items():
            lost = np.isnan(found) & np.isfinite(first.results[name])
            if lost.any():
                sentence = f"the kernel's {direction}: it does not write {name} at {where_of(lost)}, at {at.case}"
                bench.note("memory", at.case, sentence, at)
                bench.broken.add(direction)
    if direction in bench.broken:
        return
    _compare(bench, "sizes", direction, at, first.results)
    if bench.claims.strides:
        _compare(bench, "strides", direction, at, run(bench, direction, at, gaps=True).results)
    if "add" in form.options or adds:
        _try_adding(bench, direction, at, adds or frozenset(at.true[direction]))
    _try_again(bench, direction, at, first.results)


def _compare(
    bench: Bench, check: str, direction: str, at: At, results: Arrays, start: Arrays | None = None, how: str = ""
) -> None:
    for name, found in results.items():
        beside = 0.0 if start is None or name not in start else start[name]
        true = at.true[direction][name] + beside
        if not true.size:
            continue
        moved = [each[name] + beside for each in at.moved[direction]]
        # At some sizes a result all but vanishes, as the gradient of a norm over one channel: that is no smaller error.
        usual = bench.usual.setdefault(name, float(np.abs(true).max()))
        least = usual if float(np.abs(true).max()) < VANISHED * usual else 0.0
        error, allowed, where = farthest(found, true, moved, "float32", summed(true, at.read(direction)), least)
        if check == "sizes":
            bench.shares.append((error / allowed, f"{name} at {at.case}"))
        if not error <= allowed:
            place = f" at {where}" if where else ""
            bench.note(
                check,
                at.case,
                f"{name} is {float(found[where])!r}{place}, the definition says {float(true[where])!r}{how} (off by "
                f"{error:.1e} of its largest element, allowed {allowed:.1e}), at {at.case}",
                at,
            )


def _try_adding(bench: Bench, direction: str, at: At, names: frozenset[str]) -> None:
    """On top of numbers that are there."""
    rng = bench.rng(f"adding {at.case}")
    start = {
        name: np.asarray(rng.normal(size=at.true[direction][name].shape).astype(np.float32), np.float64)
        for name in sorted(names)
    }
    ran = run(bench, direction, at, start=start, add=names)
    _compare(bench, "adding", direction, at, ran.results, start, ", added to what was there")


def _try_again(bench: Bench, direction: str, at: At, first: Arrays) -> None:
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
            _compare(bench, "threads", direction, at, run(bench, direction, at, **ways).results, how=f", on {how}")


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


def _try_range(bench: Bench, direction: str, inputs: list[Any]) -> None:
    if not _defined_at(bench.definition, inputs):
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
    """The complex step says NaN of every gradient where there is one: then it has to come out somewhere."""
    if bench.definition.way != "complex step" or trial.direction == "forward":
        for lost in unnoticed(trial, bench.rng(case)):
            bench.note("NaN", case, lost.removeprefix(f"{trial.name}.{trial.direction}: "))
        return
    rng = bench.rng(case)
    for argument in trial.ranged:
        numbers = trial.usual(rng)
        place = tuple(int(rng.integers(0, size)) for size in numbers[argument].shape)
        numbers[argument][place] = np.nan
        if not any(np.isnan(each).any() for each in trial.found(numbers).values()):
            bench.note("NaN", case, f"a NaN at {place} of {argument} is not seen in any gradient")


def _within(value: Array, most: float) -> bool:
    size = np.abs(value[value != 0]) if value.size else value
    return not size.size or (float(size.max()) <= most and float(size.min()) >= 1 / most)


# What was tried


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
