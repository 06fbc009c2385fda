"""Every kernel over the whole range of its type, on the numbers of `check/range_numbers.py`, and on NaN.

An op's own examples say what it takes; here they become larger and their numbers extreme, so that a new op is covered
from its first day. A backward gets what the backend's own forward saved, and both are held to the reference in float64
from end to end. The error of a result is counted in roundings (2⁻²⁴) of its natural size: its own, or how much the
exact result moves, per rounding, when everything it is made from is off by some. What cancels by nature may be off by
more and is listed in `check/range_terms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, Protocol

import numpy as np

from tapeless.backends.backend import Backend, bind_call
from tapeless.backends.reference import REFERENCE
from tapeless.check.examples import Example, dims_of, examples_of, resized
from tapeless.check.finding import Finding
from tapeless.check.lockstep import summed_letters
from tapeless.check.ops import call_alone
from tapeless.check.range_numbers import KINDS, TOGETHER, Kind
from tapeless.check.range_terms import NOT_MOVED, SQUARED, SQUARED_FROM, SQUARED_TO, TERMS
from tapeless.check.tolerances import RANGE_FLOOR, RANGES
from tapeless.kernels.native import Native
from tapeless.ops import OPS
from tapeless.ops.contract import Array, Dims, Shape, Spec
from tapeless.program.call import Call
from tapeless.shown import Told

Arrays = dict[str, Array]
Move = Callable[[str, Shape], Any]  # of an argument: in units of MOVE
Numbers = tuple[str, Callable[[np.random.Generator], Arrays]]

VALUES = 100_000  # tried per op and direction, at least
# How often, and by how much, what goes in is moved at random to learn the natural size. Few draws may all be small by
# chance: where a result looks as bad as SUSPECT of what is allowed, more are made before it is judged.
DRAWS, MORE_DRAWS, SUSPECT, MOVE = 4, 16, 0.1, 4 * 2.0**-24
ROUNDING = 2.0**-24
LARGEST = float(np.finfo(np.float32).max) / 8  # a sum of terms this large is not asked to fit

LETTERS = ("B", "T", "S", "R", "C", "H", "D", "F", "V", "P", "K", "M", "N")


def _sizes(*of: int | None, shared: int = 1) -> Dims:
    """Sizes by letter of the LEGEND; None: the size of the example. `shared`: the heads of keys, which decide their
    channels."""
    sizes = {letter: size for letter, size in zip(LETTERS, of, strict=True) if size is not None}
    return sizes | {"G": shared, "E": shared * sizes["D"], "A": max(1, sizes["D"] // 2)}


# The bulk of the values is tried at one size; then one channel, one row, and a size at which kernels use threads, cut
# strips and hold the vocabulary transposed.
USUAL = _sizes(4, 20, 24, 48, 24, 2, 12, 40, 37, 30, 20, 6, 4000)
NARROW = _sizes(5, 9, 9, 60, 1, 1, 1, 1, None, 12, 60, 1, None)
ONE_ROW = _sizes(2, 1, 9, 1, 48, 4, 12, 50, 37, 30, 1, 3, None, shared=2)
THREADED = _sizes(2, 70, 75, 345, 192, 8, 24, 192, 1100, 80, 200, 190, 70_000, shared=2)
SMALL = _sizes(2, 4, 5, 6, 8, 2, 4, 9, 7, 8, 4, 3, 40)
SHORT = 8  # cases at each of the other sizes
SIZES = ((USUAL, None), (NARROW, SHORT), (ONE_ROW, SHORT), (THREADED, 2))


@dataclass(frozen=True, repr=False)
class RangeError(Told):
    """One result of an op over all that was tried: its worst error, in roundings of its natural size, and where."""

    op: str
    direction: str
    result: str
    error: float
    allowed: float
    values: int
    case: str
    position: Shape
    found: float
    true: float

    @property
    def share(self) -> float:
        return self.error / self.allowed

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        return (
            f"{self.op}.{self.direction} at {self.case}: {self.result} is {self.found!r} at {self.position}, the "
            f"reference says {self.true!r} (off by {self.error:.3g} roundings, allowed {self.allowed:g})"
        )


class RangeTrial(Protocol):
    """What can be run on any numbers, by what is under test and by what it is held to; a Trial, or somebody's own."""

    name: str
    direction: str
    example: Example
    ranged: list[str]  # the arguments that extreme numbers are put into
    lengths: dict[str, float]  # by result: √ of the most numbers that are summed into one
    size: int

    def usual(self, rng: np.random.Generator) -> Arrays: ...
    def extreme(self, argument: str, make: Kind, rng: np.random.Generator) -> Array: ...
    def found(self, numbers: Arrays) -> Arrays: ...
    def true(self, numbers: Arrays, move: Move | None = None) -> Arrays: ...
    def moves(self) -> Iterator[Move]: ...
    def at_random(self, name: str, shape: Shape) -> Any: ...


@dataclass(frozen=True)
class RangeCase:
    """Numbers for an op at one size, the true results, and the sizes that their errors are measured by."""

    trial: RangeTrial
    title: str
    numbers: Arrays
    true: Arrays
    sizes: Arrays


def check_ranges(name: str, backend: Backend) -> Iterator[Finding]:
    """An op of a backend at a small size, so that it can be asked often; whatever it raises is a finding as well."""
    place = f"{name} on {backend.name}"
    try:
        yield from (Finding(place, "range", str(error)) for error in range_errors(name, backend, 0, 0) if not error.ok)
        for direction in _directions(name):
            trial = Trial(name, direction, _resized(name, examples_of(name)[0], SMALL, _rng(0, name)), backend, False)
            yield from (Finding(place, "range", lost) for lost in unnoticed(trial, _rng(1, name)))
    except Exception as error:
        yield Finding(place, "range", f"raises {type(error).__name__}: {error}")


def range_errors(name: str, backend: Backend, seed: int = 0, values: int = VALUES) -> Iterator[RangeError]:
    """The worst error of each result of an op, in both directions, over at least so many values; with 0, over what fits
    of every case at a small size."""
    for direction in _directions(name):
        worst: dict[str, RangeError] = {}
        tried = 0
        for case in cases(name, direction, backend, seed, values):
            tried += case.trial.size
            for each in judge(case, case.trial.found(case.numbers)):
                held = worst.get(each.result)
                if held is None or each.share > held.share:
                    worst[each.result] = each
        yield from (RangeError(**vars(each) | {"values": tried}) for each in worst.values())


def _directions(name: str) -> tuple[str, ...]:
    return ("forward", "backward") if OPS[name].SPEC.backward else ("forward",)


def _rng(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng([seed, *"".join(names).encode()])


def cases(name: str, direction: str, backend: Backend, seed: int = 0, values: int = VALUES) -> Iterator[RangeCase]:
    """All that is tried of an op, but for what has a true result, or terms of one, that does not fit the type."""
    rng = _rng(seed, name, direction)
    examples = examples_of(name)
    tried = 0
    for size, most in SIZES if values else ((SMALL, None),):
        for number, example in enumerate(examples if size is USUAL else examples[:2]):
            trial = Trial(name, direction, _resized(name, example, size, rng), backend, adding=number % 2 == 1)
            kinds = kinds_of(trial)
            if most is not None or number:
                kinds = [kinds[i] for i in rng.permutation(len(kinds))[: most or SHORT]]
            for case in fitting(trial, kinds, rng):
                tried += trial.size
                yield case
    trial = Trial(name, direction, _resized(name, examples[0], USUAL, rng), backend, adding=False)
    progress = True
    while tried < values and progress:
        progress = False
        for case in fitting(trial, kinds_of(trial), rng):
            progress = True
            tried += trial.size
            yield case


def fitting(trial: RangeTrial, kinds: list[Numbers], rng: np.random.Generator) -> Iterator[RangeCase]:
    for title, make in kinds:
        numbers = make(rng)
        with np.errstate(all="ignore"):
            true, sizes = natural_sizes(trial, numbers)
            if all((size < LARGEST).all() for size in sizes.values()):  # False for NaN too
                yield RangeCase(trial, title, numbers, true, sizes)


def _resized(name: str, example: Example, sizes: Dims, rng: np.random.Generator) -> Example:
    dims = dims_of(name, example)
    dims |= {letter: size for letter, size in sizes.items() if letter in dims}
    if "A" in dims and "C" in dims:  # one channel makes no pair: there two stand for it
        dims["C"] = max(dims["C"], 2 * dims["A"])
    if "U" in dims:  # what matrices leave
        dims["U"] = max(1, dims["N"] - sum(rows * sum(widths) for _, rows, widths in example["matrices"]))
    return resized(name, example, dims, rng)


def kinds_of(trial: RangeTrial) -> list[Numbers]:
    """Each argument extreme by itself, the others as in the example, and all of them at once."""

    def numbers(extreme: list[str], make: Kind, rng: np.random.Generator) -> Arrays:
        return {**trial.usual(rng), **{argument: trial.extreme(argument, make, rng) for argument in extreme}}

    alone: list[Numbers] = [
        (f"{a} of {kind}", partial(numbers, [a], make)) for a in trial.ranged for kind, make in KINDS.items()
    ]
    return alone + [(f"everything of {kind}", partial(numbers, trial.ranged, make)) for kind, make in TOGETHER.items()]


@dataclass(frozen=True)
class TrialCall:
    """A call on the arrays of the backend under test, and of the reference."""

    call: Call
    narrow: Arrays
    wide: Arrays
    tested: list[Native]
    reference: list[Native]


class Trial:
    """An op at one size, ready to be run on any numbers by a backend and by the reference."""

    def __init__(self, name: str, direction: str, example: Example, backend: Backend, adding: bool) -> None:
        self.name, self.direction, self.example = name, direction, example
        self.spec: Spec = OPS[name].SPEC
        self._rng = np.random.default_rng(0)
        alone = direction == "forward" or self.spec.fused
        self.steps: list[TrialCall] = []
        self.given: Arrays = {}
        for way in (direction,) if alone else ("forward", direction):
            call, wide = call_alone(name, way, example, adding and way == direction)
            narrow = {key: np.array(array, self._dtype(key)) for key, array in wide.items()}
            tested, true = bind_call(call, narrow, backend), bind_call(call, wide, REFERENCE)
            made = {argument.name for step in self.steps for argument in step.call.writes}
            self.steps.append(TrialCall(call, narrow, wide, tested, true))
            self.given |= {a.name: wide[a.name].copy() for a in call.reads if a.name not in made}
        floats = [key for key in self.given if self.given[key].dtype.kind == "f"]
        self._single = all(array.size == 1 for array in self.given.values())  # like a norm and its limit
        self.ranged = floats if self._single else [key for key in floats if self.spec.is_number(key)]
        examples = [*examples_of(name), *(OPS[name].example(np.random.default_rng(seed)) for seed in range(8))]
        drawn = {key: [one[key] for one in examples if isinstance(one.get(key), np.ndarray)] for key in floats}
        self.positive = {key for key, arrays in drawn.items() if arrays and all((each > 0).all() for each in arrays)}
        call = self.steps[-1].call
        self.results = [argument.name for argument in call.writes if argument.name != "logits"]
        # √ of the most numbers that are summed into one, and 1 where nothing is.
        self.lengths = {
            result: sqrt(max((call.dims[letter] for letter in summed_letters(call, result)), default=1))
            for result in self.results
        }
        self.size = sum(self.given[key].size for key in self.ranged) + sum(wide[key].size for key in self.results)

    def _dtype(self, argument: str) -> Any:
        return self.spec.dtype(argument, "float32")

    def usual(self, rng: np.random.Generator) -> Arrays:
        """The example's numbers, in another order each time."""
        return {key: self._held(key, rng.permuted(array)) for key, array in self.given.items()}

    def extreme(self, argument: str, make: Kind, rng: np.random.Generator) -> Array:
        values = make(rng, self.given[argument].shape)
        return self._held(argument, np.abs(values) if argument in self.positive else values)

    def _held(self, argument: str, values: Array) -> Array:
        """What the type of the argument can hold, in float64 where it is a float."""
        held = values.astype(self._dtype(argument))
        return held.astype(np.float64) if held.dtype.kind == "f" else held

    def found(self, numbers: Arrays) -> Arrays:
        return self._run(numbers, tested=True)

    def true(self, numbers: Arrays, move: Move | None = None) -> Arrays:
        return self._run(numbers, False, move)

    def moves(self) -> Iterator[Move]:
        """What is read, what the forward saved too, is off by a few roundings: one argument at a time by the same,
        which is all there is to know of a result that is no sum, and then everything at random."""
        read = set() if self._single else {argument.name for step in self.steps for argument in step.call.reads}
        for one in sorted(read.difference(NOT_MOVED.get(self.name, ()))):
            yield partial(only, one)
        # Of single numbers there are no terms.
        yield from [self.at_random] * (DRAWS if read else 0)

    def at_random(self, name: str, shape: Shape) -> Any:
        return 0.0 if name in NOT_MOVED.get(self.name, ()) else self._rng.normal(size=shape)

    def _run(self, numbers: Arrays, tested: bool, move: Move | None = None) -> Arrays:
        made = dict(numbers)
        moved: set[str] = set()  # once: both directions read the same
        for step in self.steps:
            arrays, runs = (step.narrow, step.tested) if tested else (step.wide, step.reference)
            for argument in step.call.arguments:
                name, array = argument.name, arrays[argument.name]
                if argument.mode == "write":
                    array[...] = np.nan if array.dtype.kind == "f" else -1
                    continue
                if move is not None and name not in moved and array.dtype.kind == "f":
                    moved.add(name)
                    made[name] = made[name] * (1 + MOVE * move(name, array.shape))
                array[...] = made[name]
            for run in runs:
                run()
            made |= {a.name: arrays[a.name].astype(np.float64) for a in step.call.writes}
        return {result: made[result] for result in self.results}


def only(one: str, name: str, shape: Shape) -> float:
    return float(name == one)


def judge(case: RangeCase, found: Arrays) -> list[RangeError]:
    """How far each result is off, where it is so most."""
    errors = [_error(case, result, found[result]) for result in case.true]
    if any(SUSPECT < error.share < np.inf for error in errors):
        with np.errstate(all="ignore"):
            _learn(case.trial, case.numbers, case.true, case.sizes, [case.trial.at_random] * MORE_DRAWS)
        errors = [_error(case, result, found[result]) for result in case.true]
    return errors


def _learn(trial: RangeTrial, numbers: Arrays, true: Arrays, sizes: Arrays, moves: Iterable[Move]) -> None:
    """The sizes grow by what the true results move."""
    for move in moves:
        moved = trial.true(numbers, move)
        for result, value in true.items():
            np.maximum(sizes[result], np.abs(moved[result] - value) / MOVE, out=sizes[result])


def unnoticed(trial: RangeTrial, rng: np.random.Generator) -> Iterator[str]:
    """A NaN that goes in comes out, wherever it does so by the reference: the guard of a training looks for it."""
    for argument in trial.ranged:
        numbers = trial.usual(rng)
        place = tuple(int(rng.integers(0, size)) for size in numbers[argument].shape)
        numbers[argument][place] = np.nan
        with np.errstate(all="ignore"):
            true, found = trial.true(numbers), trial.found(numbers)
        for result in true:
            here = true[result].shape == numbers[argument].shape and np.isnan(true[result][place])
            lost = here and not np.isnan(found[result][place])
            if lost or np.isnan(true[result]).any() > np.isnan(found[result]).any():
                yield f"{trial.name}.{trial.direction}: a NaN at {place} of {argument} is not seen in {result}"


def natural_sizes(trial: RangeTrial, numbers: Arrays) -> tuple[Arrays, Arrays]:
    """The true results, and the size that their errors are measured by."""
    true = trial.true(numbers)
    sizes = {result: np.abs(value) for result, value in true.items()}
    _learn(trial, numbers, true, sizes, trial.moves())
    if trial.name in TERMS:
        made = TERMS[trial.name](numbers, trial.example)
        sizes |= {result: np.maximum(sizes[result], made[result]) for result in sizes.keys() & made.keys()}
    return true, sizes


def _error(case: RangeCase, result: str, found: Array) -> RangeError:
    trial, true = case.trial, case.true[result]
    with np.errstate(all="ignore"):
        off = np.maximum(np.abs(found - true) - RANGE_FLOOR, 0)
        error = np.where(off == 0, 0, off / (ROUNDING * case.sizes[result]))
    error = np.where(np.isfinite(found), error, np.inf)
    if result in SQUARED.get(trial.name, ()):
        error = np.where((true > SQUARED_FROM) & (true < SQUARED_TO), error, 0)
    where = np.unravel_index(int(np.argmax(error)), error.shape)
    return RangeError(
        trial.name,
        trial.direction,
        result,
        float(error[where]),
        RANGES.get(trial.name, RANGES["any other op"]) * trial.lengths[result],
        trial.size,
        case.title,
        tuple(int(i) for i in where),
        float(found[where]),
        float(true[where]),
    )
