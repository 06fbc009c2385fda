"""An op by itself: does it compute what its definition says, is its backward the derivative of that, does it add where
it is told to add, and does it leave alone what it only reads?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np

from tapeless.backends.backend import Backend, backend_named, run_call
from tapeless.backends.reference import REFERENCE
from tapeless.check.complex_step import TensorError, op_derivative, relative_error, run_forward
from tapeless.check.definitions import DEFINITIONS, sinusoid, turning_rates
from tapeless.check.examples import Example, examples_of, examples_with_master
from tapeless.check.finding import Finding, difference
from tapeless.check.lockstep import Difference, compare
from tapeless.errors import NotYetError, TapelessError
from tapeless.ops import OPS
from tapeless.ops.angles import reference as angles
from tapeless.ops.contract import NONE, Array, Signature
from tapeless.ops.positions import reference as positions
from tapeless.program.arena import Placement
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Call, add, update, write

Arrays = dict[str, Array]


def check_alone(name: str) -> Iterator[Finding]:
    """An op of the reference on all its examples. Whatever it raises is a finding as well."""
    try:
        for example in (*examples_of(name), *examples_with_master(name)):
            for checker, detail in _faults(name, example):
                yield Finding(name, checker, detail)
    except TapelessError as error:
        yield Finding(name, "definition", str(error))
    except Exception as error:  # a kernel that cannot take its arguments is as wrong as one that takes them badly
        yield Finding(name, "definition", f"raises {type(error).__name__}: {error}")
    if name == "positions":
        found = difference(positions.sinusoid(6, 5), sinusoid(6, 5))
        if found:
            yield Finding(name, "definition", f"the sinusoid {found}")
    if name == "angles":
        yield from (Finding(name, "definition", detail) for detail in _rates())


def _rates() -> Iterator[str]:
    """How fast the pairs turn, plainly and slowed down: at these numbers some pairs lie in every band."""
    plain, bands = angles.rates(8, 1000.0), (8.0, 1.0, 4.0, 64)
    for scaling, found in (
        ("none", plain),
        ("linear", angles.linear(plain, bands[0])),
        ("llama3", angles.llama3(plain, *bands)),
    ):
        wrong = difference(found, np.array(turning_rates(8, 1000.0, scaling, *bands)))
        if wrong:
            yield f"how fast pairs turn, scaling {scaling!r}, {wrong}"


def _faults(name: str, example: Example) -> Iterator[tuple[str, str]]:
    spec = OPS[name].SPEC
    if name not in DEFINITIONS:
        raise TapelessError(f"{name} has no definition: say it once more in check/definitions.py, in plain loops.")
    defined: Arrays = DEFINITIONS[name](**example)
    for direction in ("forward", "backward") if spec.backward else ("forward",):
        call, arrays = call_alone(name, direction, example)
        before = {key: array.copy() for key, array in arrays.items()}
        run_call(call, arrays, REFERENCE)
        unwritten = [each.name for each in call.writes if each.name != "logits" and _is_unwritten(arrays[each.name])]
        for argument in unwritten:
            yield "definition", f"{argument} of {call.title} is not written: a kernel says {argument}[...] = …"
        if unwritten:
            return
        for argument, true in defined.items():  # the loss comes from both directions
            found = difference(arrays[argument], true) if argument in call.signature.writes else None
            if found:
                yield "definition", f"{argument} of {call.title} {found}"
        if direction == "backward":
            for error in _derivatives(name, example, arrays):
                if not error.ok:
                    yield "complex step", f"{error.tensor} is off by {error.error:.1e} of its largest element"
        yield from _touched(call, before, arrays)
        yield from _adding(name, direction, example, arrays)
        yield from _leaving_out(name, direction, example, arrays)


def _is_unwritten(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array).all())


def forms_of(signature: Signature, example: Example) -> list[frozenset[str]]:
    """What a call may leave out of its gradients, in all combinations, none first, and what is then not needed."""
    gradients = [output for output in signature.writes if output in signature.optional and output[1:] in example]
    some = (frozenset(each) for count in range(len(gradients)) for each in combinations(gradients, count))
    return [
        left_out | {read for read, outputs in signature.needed_by.items() if left_out.issuperset(outputs)}
        for left_out in some
    ] or [frozenset()]


def call_alone(
    name: str, direction: str, example: Example, adding: bool = False, without: frozenset[str] = NONE
) -> tuple[Call, Arrays]:
    """A call of an op by itself, and float64 arrays for it: what it reads from the example, a random dy, and where it
    writes NaN, so that what it leaves unwritten shows. `adding`: it adds wherever it can, to random numbers."""
    spec, rng = OPS[name].SPEC, np.random.default_rng(1)
    signature = spec.signature(direction)
    given = {key: value for key, value in example.items() if isinstance(value, np.ndarray)}
    shapes = {key: value for key, value in example.items() if isinstance(value, tuple) and key in spec.shapes}
    known = given | (run_forward(name, example, np.float64) if direction == "backward" else {})
    dims = spec.dims({key: np.shape(value) for key, value in known.items()} | shapes)
    p, arrays = Builder(), dict[str, Array]()
    values: dict[str, Any] = {}
    for argument in signature.arguments:
        if argument in without or (argument in signature.optional and argument.removeprefix("d") not in known):
            continue
        letters = spec.letters(argument)
        shape = shapes.get(argument) or tuple(int(x) if x.isdigit() else dims[x] for x in letters)
        if argument in known and (argument not in signature.writes or argument in signature.updates):
            array = known[argument].copy()
        elif argument in signature.writes and not (adding and argument in signature.adds):
            dtype = np.dtype(spec.dtype(argument, "float64"))
            array = np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)
        else:
            array = rng.normal(size=shape)
        arrays[argument] = array
        buffer = p.buffer("input", argument, array.shape, spec.roles.get(argument))
        if argument in signature.updates:
            values[argument] = update(buffer)
        elif argument in signature.writes:
            values[argument] = (add if adding and argument in signature.adds else write)(buffer)
        else:
            values[argument] = buffer
    values |= {scalar: example[scalar] for scalar in signature.scalars}
    p.call(name, direction, values, (f"an example of {name}",))
    (call,) = p.build().calls
    return call, arrays


def check_op(name: str) -> Iterator[TensorError]:
    """Every element of every input that takes a gradient, by complex step, on the op's own example."""
    example = OPS[name].example(np.random.default_rng(0))
    call, arrays = call_alone(name, "backward", example)
    run_call(call, arrays, REFERENCE)
    errors = [error for error in _derivatives(name, example, arrays) if error.tensor in arrays]
    if not errors:
        raise TapelessError(f"the backward of {name} yields no gradient to check.")
    yield from errors


def _derivatives(name: str, example: Example, arrays: Arrays) -> Iterator[TensorError]:
    """How far each gradient is from the complex step; inputs that take none are constants, whose gradient is zero."""
    spec = OPS[name].SPEC
    weights: dict[str, Any] = {key[1:]: value for key, value in arrays.items() if key[1:] in spec.forward.writes}
    weights = {"loss": 1.0} if spec.fused else weights
    for argument in spec.forward.reads:
        if argument in example and spec.is_number(argument):
            found = arrays.get(f"d{argument}", np.zeros_like(example[argument])).reshape(-1)
            true = op_derivative(name, example, argument, weights)
            yield TensorError(f"op {name}", f"d{argument}", relative_error(found, true), found.size)


def _touched(call: Call, before: Arrays, after: Arrays) -> Iterator[tuple[str, str]]:
    for argument in call.reads:
        if argument.mode == "read" and not _same(before[argument.name], after[argument.name]):
            yield "reads", f"{argument.name}, which {call.title} only reads, is overwritten"


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _adding(name: str, direction: str, example: Example, written: Arrays) -> Iterator[tuple[str, str]]:
    call, arrays = call_alone(name, direction, example, adding=True)
    added = [argument.name for argument in call.writes if argument.mode == "add"]
    if not added:
        return
    for argument in call.reads:
        if argument.mode == "read":
            arrays[argument.name][...] = written[argument.name]
    start = {output: arrays[output].copy() for output in added}
    run_call(call, arrays, REFERENCE)
    for output in added:
        found = difference(arrays[output], start[output] + written[output])
        if found:
            yield "adding", f"{output} of {call.title}, added to what is there, {found}"


def _leaving_out(name: str, direction: str, example: Example, written: Arrays) -> Iterator[tuple[str, str]]:
    """A gradient is the same whichever of the others are asked for with it."""
    for without in forms_of(OPS[name].SPEC.signature(direction), example)[1:]:
        call, arrays = call_alone(name, direction, example, without=without)
        for argument in call.reads:
            arrays[argument.name][...] = written[argument.name]
        run_call(call, arrays, REFERENCE)
        for argument in call.writes:
            found = difference(arrays[argument.name], written[argument.name]) if argument.name != "logits" else None
            if found:
                yield "complex step", f"{argument.name} without {', '.join(sorted(without))} {found}"


def check_backend_alone(name: str, backend: Backend) -> Iterator[Finding]:
    """An op of another backend on the same examples, beside the reference, call by call."""
    place = f"{name} on {backend.name}"
    try:
        for differences, touched in _beside_the_reference(name, backend):
            yield from (Finding(place, "lockstep", str(found)) for found in differences if not found.ok)
            yield from (Finding(place, "reads", detail) for detail in touched)
    except Exception as error:
        yield Finding(place, "lockstep", f"raises {type(error).__name__}: {error}")


def ops_alone(backend: str) -> Iterator[Difference]:
    """Every result of every op by itself, for what no model uses."""
    for name in OPS:
        yield from op_alone(name, backend_named(backend))


def op_alone(name: str, backend: Backend) -> Iterator[Difference]:
    for differences, _ in _beside_the_reference(name, backend):
        yield from differences


def _beside_the_reference(name: str, backend: Backend) -> Iterator[tuple[list[Difference], list[str]]]:
    """By call: how far its results are from the reference, and which of its inputs it has changed."""
    for example in (*examples_of(name), *long_examples(name)):
        for direction in ("forward", "backward") if OPS[name].SPEC.backward else ("forward",):
            signature = OPS[name].SPEC.signature(direction)
            for adding, without in product((False, True) if signature.adds else (False,), forms_of(signature, example)):
                call, true = call_alone(name, direction, example, adding, without)
                found = held(narrowed(call, true, backend.traits.precisions[0]), backend)
                before = {key: backend.read(view).copy() for key, view in found.items()}
                try:
                    differences = list(compare(call, found, true, backend))
                except NotYetError:
                    continue
                after = {key: backend.read(view) for key, view in found.items()}
                yield differences, [detail for _, detail in _touched(call, before, after)]


def narrowed(call: Call, arrays: Arrays, dtype: str) -> Arrays:
    """In the types that the backend has them in."""
    return {key: array.astype(call.spec.dtype(key, dtype)) for key, array in arrays.items()}


def held(arrays: Arrays, backend: Backend) -> dict[str, Any]:
    """In the backend's own memory."""
    views = {}
    for name, array in arrays.items():
        buffer = Buffer(name, "workspace", array.shape)
        place = Placement(buffer, "scratch", array.dtype.name, 0, array.nbytes, ((0, 0),))
        views[name] = backend.view(backend.allocate(array.nbytes), place)
        backend.write(views[name], array)
    return views


def _large_matrices(rng: np.random.Generator) -> Example:
    """A wide one beside a tall one, large enough for threads, and one that is taller still."""
    size, matrices = 190_000, ((32, 256, (384, 32)), (110_000, 140, (71,)))
    rest = size - 256 * 416 - 140 * 71
    own: Example = OPS["muon"].example(rng)
    made = {key: rng.normal(size=size) for key in ("weights", "m", "gradients")}
    places = {"decayed": ((0, 107_000),), "matrices": matrices, "sections": (0, 32, 110_000)}
    return own | made | places | {"v": rng.uniform(0.1, 1, size=rest)}


def long_examples(name: str) -> list[Example]:
    """Sizes at which a fast kernel cuts strips and blocks, too long for a definition in loops."""
    rng = np.random.default_rng(2)
    if name == "attention":
        q, k, v = (rng.normal(size=(1, 70, 4)) for _ in range(3))
        whole = {"q": q, "k": k, "v": v, "lse": (1, 2, 70), "causal": True, "window": 0}
        # Two documents, the second of which begins in a strip of queries and goes on in the next.
        return [whole, whole | {"window": 9}, whole | {"starts": np.repeat([[0, 41]], [41, 29], axis=1)}]
    if name == "muon":
        return [_large_matrices(rng)]
    if name == "linear":
        return [{"x": rng.normal(size=(67, 5)), "weight": rng.normal(size=(5, 70)), "bias": rng.normal(size=70)}]
    if name == "rmsnorm":
        return [{"x": rng.normal(size=(37, 8)), "weight": rng.normal(size=8), "rstd": (37, 1), "eps": 1e-5}]
    if name == "layernorm":
        return [{"x": 50 + rng.normal(size=(37, 8)), "weight": rng.normal(size=8), "bias": np.zeros(8), "eps": 1e-5}]
    return []
