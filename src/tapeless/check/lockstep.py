"""Two backends over the same program, call by call, to find the *first* call that goes wrong.

Before each call the reference is given exactly the numbers that the backend under test is about to read, so a call
is judged by itself: what an earlier call got slightly wrong does not count against a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np

from tapeless.backends.backend import Backend, run_call
from tapeless.backends.reference import REFERENCE
from tapeless.check.configurations import LARGER, Configuration
from tapeless.check.tolerances import LOCKSTEP, LOCKSTEP_INHERENT
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.program.lowered import FusedCall, named
from tapeless.shown import Told

MOVES, MANY = 8, 20_000  # draws of inputs that are off by a rounding; numbers from which two draws will do


@dataclass(frozen=True, repr=False)
class Difference(Told):
    """One result of one call: how far it is from the reference, and where most."""

    number: int
    call: Call
    argument: str
    error: float  # relative to the result's largest element
    tolerance: float
    position: tuple[int, ...]
    found: float
    true: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN too

    @property
    def share(self) -> float:
        """The part of the tolerance that is used; NaN is as wrong as can be."""
        share = self.error / self.tolerance
        return share if share == share else inf

    def __str__(self) -> str:
        name = self.call[self.argument].name
        return (
            f"call {self.number}, {self.call.title} at {self.call.source}: {self.argument} ({name}) "
            f"is {self.found!r} at {self.position}, the reference says {self.true!r} "
            f"(relative error {self.error:.1e}, allowed {self.tolerance:.1e})"
        )


def pair(configuration: Configuration, backend: str, precision: str | None = None) -> tuple[Model, Model, Array, Array]:
    """A model on the backend, a float64 reference with the same weights, and a batch: what `lockstep` takes. In
    bfloat16 the reference's step is that of the same list, with a master copy."""
    made = {"batch": configuration.batch, "time": configuration.time, **configuration.fields}
    model = Model(configuration.preset, backend=backend, precision=precision, **made)
    same = precision if model.precision.has_master else None
    reference = Model(configuration.preset, backend="reference", precision=same, **made)
    rng = np.random.default_rng(configuration.seed)
    inputs, targets = configuration.batch_of(rng, reference)
    if configuration not in LARGER:  # those keep their first values: at their size random ones would saturate
        configuration.scramble(rng, reference)
    for name, weight in reference.params.items():
        model.write(name, weight)
        reference.write(name, model.read(name))  # what the backend's type can hold
    return model, reference, inputs, targets


def lockstep(model: Model, reference: Model, inputs: Any, targets: Any, lr: float = 1e-3) -> Iterator[Difference]:
    """Every result of one whole step of `model`, beside the reference. The first not ok is where it broke. A fused call
    is compared as it runs, and then each of its parts by itself."""
    for each in (model, reference):
        each.feed(inputs, targets)
        each.prepare_update(lr, clip=1.0)
    fused = {first: call for (first, _), call in model.engine.lowered().groups.items()}
    for number, call in enumerate(model.program.calls):
        if number in fused:
            before = model.engine.held(fused[number])
            yield from compare_fused(fused[number], model, reference, number)
            model.engine.put_back(before)
        found, true = model.engine.arguments(call), reference.engine.arguments(call)
        yield from compare(call, found, true, model.engine.backend, number)


def compare(
    call: Call, found: dict[str, Any], true: dict[str, Array], backend: Backend, number: int = 0
) -> Iterator[Difference]:
    """Run one call on the backend over `found` and on the reference over `true`, which gets `found`'s numbers."""
    for argument in call.reads:
        true[argument.name][...] = backend.read(found[argument.name])
    dtype, roundings = _roundings(call, true, backend)
    rng = np.random.default_rng(number)
    moved = [_moved(call, true, rounding, rng) for rounding in roundings]
    for arrays, where in ((found, backend), *((each, REFERENCE) for each in (*moved, true))):
        run_call(call, arrays, where)
    for argument in call.writes:
        if argument.name != "logits":  # scratch: each backend may leave there what it likes
            name = argument.name
            mine, exact, *others = (
                array.astype(np.float64) for array in (backend.read(found[name]), true[name], *(m[name] for m in moved))
            )
            length = 1 if dtype == "bfloat16" else reduction_length(call, name)  # its sums are float32's
            yield _difference(number, call, name, mine, exact, others, dtype, length)


def _roundings(call: Call, arrays: dict[str, Array], backend: Backend) -> tuple[str, list[float]]:
    """The type that a call computes in, and how much its inputs are off by, once for each draw."""
    # A frozen weight that is bfloat16 beside what is wider is widened, which rounds nothing.
    narrow = any(
        array.dtype.kind == "V" and call.has(name) and call[name].buffer.role != "frozen"
        for name, array in arrays.items()
    )
    dtype = "bfloat16" if narrow else backend.traits.precisions[0]
    draws = MOVES if sum(array.size for array in arrays.values()) < MANY else 2  # the largest of many needs fewer draws
    return dtype, [2.0**-9 if narrow else float(np.finfo(dtype).eps) / 2] * draws


def compare_fused(fused: FusedCall, model: Model, reference: Model, number: int) -> Iterator[Difference]:
    """Run a fused call on the model's backend as it runs in a step, and its parts on the reference, which gets the
    numbers that are read from outside."""
    backend = model.engine.backend
    found, true = (
        {
            named(part, name): array
            for part, call in enumerate(fused.parts)
            for name, array in engine.arguments(call).items()
        }
        for engine in (model.engine, reference.engine)
    )
    read = {argument.name: np.array(backend.read(found[argument.name])) for argument in fused.reads}
    dtype, roundings = _roundings(fused, true, backend)
    rng = np.random.default_rng(number)
    results = []
    before = reference.engine.held(fused)
    for move in (*roundings, 0.0):
        reference.engine.put_back(before)
        for name, values in read.items():
            moved = fused.spec.is_number(name) and move
            true[name][...] = values * (1 + move * rng.choice((-1.0, 1.0), values.shape)) if moved else values
        for call in fused.parts:
            run_call(call, reference.engine.arguments(call), REFERENCE)
        results.append({each.name: true[each.name].astype(np.float64) for each in fused.writes})
    model.engine.run_alone(fused)
    lengths = [reduction_length(call, each.name) for call in fused.parts for each in call.writes]
    length = 1 if dtype == "bfloat16" else sum(lengths)
    *others, exact = results
    for argument in fused.writes:
        name, mine = argument.name, backend.read(found[argument.name]).astype(np.float64)
        yield _difference(number, fused, name, mine, exact[name], [each[name] for each in others], dtype, length)


def _moved(call: Call, arrays: dict[str, Array], rounding: float, rng: np.random.Generator) -> dict[str, Array]:
    """A copy in float64 in which every number that the call reads is off by one rounding, up or down."""
    numbers = {name for name in arrays if call.spec.is_number(name)}
    with np.errstate(invalid="ignore"):  # what a result holds before it is written may be any bits
        copies = {name: array.astype(np.float64) if name in numbers else array.copy() for name, array in arrays.items()}
    for argument in call.reads:
        if call.spec.is_number(argument.name):
            array = copies[argument.name]
            array *= 1 + rounding * rng.choice((-1.0, 1.0), array.shape)
    return copies


def _difference(
    number: int, call: Call, result: str, found: Array, true: Array, moved: list[Array], dtype: str, length: int
) -> Difference:
    error, tolerance, where = farthest(found, true, moved, dtype, length)
    return Difference(number, call, result, error, tolerance, where, float(found[where]), float(true[where]))


def farthest(
    found: Array, true: Array, moved: list[Array], dtype: str, length: int, least: float = 0.0
) -> tuple[float, float, tuple[int, ...]]:
    """The largest error of a result, relative to its largest element; what is allowed; and where it is. `moved` is what
    becomes of the exact result when its inputs are off by a rounding: where terms cancel that is far, and no kernel of
    the type can be expected to come closer. `length`: how many numbers go into one of the result. `least`: what the
    error is relative to where the largest element is smaller."""
    scale = max(float(np.abs(true).max()), least) or 1.0
    error = np.abs(found.astype(np.float64) - true) / scale
    where = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), found.shape)
    inherent = max(float(np.abs(each - true).max()) for each in moved) / scale
    tolerance = LOCKSTEP[dtype] * sqrt(length) + LOCKSTEP_INHERENT * inherent
    return float(error[where]), tolerance, tuple(int(i) for i in where)


def reduction_length(call: Call, result: str) -> int:
    """How many numbers go into one of the result: the longest axis that is read but not in the result."""
    letters = summed_letters(call, result) or set(call.spec.letters(result))
    return max((call.dims[letter] for letter in letters if letter in call.dims and letter not in "NU"), default=1)


def summed_letters(call: Call, result: str) -> set[str]:
    """The axes that are read but not in the result."""
    read = {x for argument in call.arguments if argument.mode == "read" for x in call.spec.letters(argument.name)}
    mine = set(call.spec.letters(result))
    mine |= {"N"} if "U" in mine else set()  # which are some of those
    return {letter for letter in read - mine if not letter.isdigit()}
