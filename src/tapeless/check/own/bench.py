"""A definition, a kernel, and one set of inputs at which the two are held beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from tapeless.check.lockstep import MANY, MOVES, farthest
from tapeless.check.own.callables import RefusalError
from tapeless.check.own.calling import Caller, Ran
from tapeless.check.own.definition import Definition, is_float
from tapeless.check.own.report import Wrong
from tapeless.check.own.sizes import summed
from tapeless.check.own.trial import Arrays, named, saved_of
from tapeless.ops.contract import NONE, Array

ROUNDING = 2.0**-24
FEW = 60  # numbers from which two draws must do where each is a run of the forward
VANISHED = 2.0**-10  # of what a result is at the example: so small by cancellation


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


def at_inputs(bench: Bench, case: str, inputs: list[Any]) -> At:
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
        many = sum(each.size for each in inputs if is_float(each)) > (FEW if definition.way == "complex step" else MANY)
        true[direction] = _said(definition, direction, inputs, dy)
        moved[direction] = []
        for _ in range(2 if many else MOVES):
            off, dy_off = moved_by_a_rounding(inputs, list(dy.values()), rng)
            moved[direction].append(_said(definition, direction, off, dict(zip(dy, dy_off, strict=True))))
    return At(case, inputs, dy, true, moved, saved)


def defined_at(definition: Definition, inputs: list[Any]) -> bool:
    """Whether the definition takes these sizes at all: an index may be out of them, a head may not divide them."""
    try:
        with np.errstate(all="ignore"):
            outputs, _ = definition.outputs(inputs)
    except RefusalError:
        raise
    except Exception:  # the definition's own way of saying no
        return False
    return any(each.size for each in outputs) and all(np.isfinite(each).all() for each in outputs)


def narrowed_and_back(value: Any) -> Any:
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


def run(bench: Bench, direction: str, at: At, **ways: Any) -> Ran:
    """One call of the kernel; a backward after the forward that saves for it."""
    caller, true = bench.caller, at.true[direction]
    if direction == "forward":
        return caller.forward(at.inputs, {n: x for n, x in true.items() if n not in at.saved}, at.saved, **ways)
    keeps: Any = at.saved
    if caller.pair.saved and "forward" in caller.forms:
        like = {name: x for name, x in at.true["forward"].items() if name not in at.saved}
        ran = caller.forward(at.inputs, like, at.saved)
        keeps = saved_of(ran.results, ran.saved, at.saved, caller)
    return caller.backward(at.inputs, at.dy, keeps, true, **caller.plainly(true) | ways)


def compare(
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
