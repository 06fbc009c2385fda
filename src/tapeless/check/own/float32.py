"""Somebody's float32 kernel for an op of their own, held to a definition in float64.

At the sizes of the example and at others: each result within lockstep's tolerance, on memory that is watched, written
and added, again and again and on several threads at once. Then over the whole range of the type, and on NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from tapeless.check.own.again import try_again
from tapeless.check.own.bench import At, Bench, Claims, at_inputs, compare, defined_at, narrowed_and_back, run
from tapeless.check.own.callables import Pair, RefusalError
from tapeless.check.own.calling import Caller, Form, KernelRaisedError, form_of, poisoned
from tapeless.check.own.definition import Definition, defined
from tapeless.check.own.proof import Report
from tapeless.check.own.report import Float32Report, Wrong
from tapeless.check.own.sizes import SMALL, letters_of, other_sizes, resized, title
from tapeless.check.own.trial import OwnTrial, named
from tapeless.check.own.walk import GARBAGE, left_unwritten, where_of
from tapeless.check.ranges import fitting, judge, kinds_of, unnoticed
from tapeless.errors import TapelessError
from tapeless.ops.contract import NONE, Array

Extra = Callable[["Bench", str, list[Any]], Iterator[Wrong]]  # what else is asked of a kernel at one set of inputs


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


# What is tried


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
    at = at_inputs(bench, case, inputs)
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
    compare(bench, "sizes", direction, at, first.results)
    if bench.claims.strides:
        compare(bench, "strides", direction, at, run(bench, direction, at, gaps=True).results)
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
    ran = run(bench, direction, at, start=start, add=names)
    compare(bench, "adding", direction, at, ran.results, start, ", added to what was there")


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
