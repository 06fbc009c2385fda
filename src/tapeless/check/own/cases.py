"""What a float32 kernel is held to, and on which inputs.

The definition is somebody's forward in float64, with a way to its gradients: its own backward, which is proven first;
or, where there is none, torch's autograd for a definition in torch, and the complex step for one in NumPy. A step of
1e-150 is nothing beside any number that float32 has, and float64 still has its products.

The inputs are the example's at other sizes: one, odd, at the edges of blocks and beyond them. Axes of one size are
taken for one axis that several inputs share, unless `shapes` names them; an axis of size 1 stays. What an array holds
is drawn from what it held: indices stay indices that are there, what is positive stays so. Then extreme numbers, as
`check/ranges.py` has them for our own ops.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from tapeless.check.examples import Example
from tapeless.check.lockstep import MANY, MOVES
from tapeless.check.own.gradient import Report, WeightedSum, not_analytic, prove
from tapeless.check.own.harness import (
    Arrays,
    Caller,
    Pair,
    Ran,
    RefusalError,
    arguments,
    as_array,
    complex_outputs,
    first_line,
    first_outputs,
    outputs_of,
    run_backward,
    run_forward,
)
from tapeless.check.range_numbers import Kind
from tapeless.check.ranges import DRAWS, MOVE, ROUNDING, Case, Move, only
from tapeless.check.tolerances import LOCKSTEP_INHERENT, RANGES, TOLERANCES
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array, Dims, Shape

STEP = 1e-150
ROUGH_STEP, ROUGH_RANGE = 1e-10, 1e15  # of the same in complex64, and how far from 1 numbers may be for it
MOST = 300_000  # numbers in one input
MOST_STEPS = 2500  # elements of which the complex step takes the derivative, a run of the forward each
EDGES = (1, 2, 17, 64, 65, 257, 1031)  # a vector's rest, a block, one beyond it, more than 1,024
ODD = (3, 7, 5, 11, 13, 9)  # all axes at once
SMALL = 12  # what other axes shrink to where they must, and those of extreme numbers
FEW = 60  # numbers from which two draws must do where each is a run of the forward
DOUBTED = 2.0**-10  # of a result's largest element: torch in float32 loses more only where it overflows

Letters = list[list[str]]  # of each input, one per axis; none for what is no array


@dataclass(frozen=True)
class Definition:
    """A forward in float64 with a way to its gradients. `inputs` everywhere: arrays for tensors, else as given."""

    pair: Pair
    wrt: tuple[int, ...]  # the inputs that take gradients
    way: str  # "backward", "autograd" or "complex step"
    itself: bool = False  # it is the kernel under test, computed in float64

    @property
    def names(self) -> tuple[str, ...]:
        return self.pair.names

    @property
    def most(self) -> int:
        """Numbers in one input at which gradients can be had in reasonable time."""
        return MOST_STEPS if self.way == "complex step" else MOST

    def outputs(self, inputs: Sequence[Any], dtype: Any = np.float64) -> tuple[list[Array], list[Array]]:
        """What the forward returns, and what it saves, where that is arrays."""
        pair = replace(self.pair, inputs=_in(dtype, inputs))
        outputs, saved = run_forward(pair)
        return outputs, flattened(saved)

    def gradients(self, inputs: Sequence[Any], dy: Sequence[Array], dtype: Any = np.float64) -> list[Array]:
        pair = replace(self.pair, inputs=_in(dtype, inputs))
        weights = [np.asarray(each, dtype) for each in dy]
        if self.way == "autograd":
            found = by_autograd(pair, self.wrt, weights)
        elif self.way == "backward":
            found = run_backward(pair, self.wrt, weights)[0]
        else:
            found = _by_complex_step(pair, self.wrt, weights, dtype)
        zeros = [np.zeros(np.shape(inputs[index]), dtype) for index in self.wrt]
        return [zero if each is None else as_array(each) for zero, each in zip(zeros, found, strict=True)]

    def results(self, direction: str, inputs: Sequence[Any], dy: Arrays) -> Arrays:
        """Of one direction by name; what the forward saves among them."""
        if direction == "forward":
            outputs, saved = self.outputs(inputs)
            return named("y", outputs) | named("saved", saved)
        found = self.gradients(inputs, list(dy.values()))
        return {f"d{self.names[index]}": each for index, each in zip(self.wrt, found, strict=True)}

    def rough(self, inputs: Sequence[Any], dy: Sequence[Array] | None) -> list[Array] | None:
        """The same computed in float32: what its own formula loses there. None where it does not compute in that, or
        leaves the range of the type on its way. torch does not tell of that; there it is for the caller to doubt."""
        if self.itself:
            return None
        if dy is not None and self.way == "complex step" and not all(map(_moderate, [*inputs, *dy])):
            return None
        try:
            with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
                warnings.simplefilter("ignore")
                found = self.outputs(inputs, np.float32)[0] if dy is None else self.gradients(inputs, dy, np.float32)
        except Exception:  # it was written for float64, and need not take anything else
            return None
        return found if all(each.dtype == np.float32 for each in found) else None


def defined(pair: Pair, wrt: tuple[int, ...], seed: int, gradients: bool) -> tuple[Definition, Report | None]:
    """The definition, and the proof of its backward where it has one. RefusalError where nothing can be held to it."""
    if pair.backward is not missing:
        report = prove(pair, wrt, None, seed, None)
        return Definition(pair, wrt, "backward"), report
    here = first_outputs(pair)
    if not gradients:
        return Definition(pair, wrt, "none"), None
    if pair.tensors:
        return Definition(pair, wrt, "autograd"), None
    total = WeightedSum(pair, here, [np.ones_like(each) for each in here], wrt)
    for index in wrt:
        doubt = not_analytic(total, index, np.random.default_rng(seed))
        if doubt:
            raise RefusalError(
                f"there is no backward, and the complex step cannot take its place for {pair.names[index]}: {doubt}. "
                f"Give the definition a backward, or write it in torch."
            )
    return Definition(pair, wrt, "complex step"), None


def missing(*arguments: Any) -> Any:
    """Stands for a backward that nobody gave."""
    raise TapelessError("this definition has no backward.")


def flattened(saved: Any) -> list[Array]:
    """The arrays among what a forward keeps for its backward, in order."""
    if saved is None:
        return []
    each = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, tuple | list) else (saved,)
    return [as_array(value) for value in each if hasattr(value, "shape") and hasattr(value, "dtype")]


def by_autograd(pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array]) -> list[Any]:
    """torch's gradients of Σ dy·y; None where an output does not depend on an input."""
    torch = sys.modules["torch"]
    given = arguments(pair)
    for index in wrt:
        given[index].requires_grad_()
    with torch.enable_grad():
        outputs, _ = outputs_of(pair, pair.forward(*given))
    kept = [(y, d) for y, d in zip(outputs, dy, strict=True) if getattr(y, "requires_grad", False)]
    if not kept:
        raise RefusalError(
            "autograd finds no way from the definition's output to its inputs: does it leave torch, or detach?"
        )
    weights = [torch.from_numpy(d.copy()).to(y.device) for y, d in kept]
    try:
        found = torch.autograd.grad([y for y, _ in kept], [given[i] for i in wrt], weights, allow_unused=True)
    except RuntimeError as error:
        raise TapelessError(f"torch's autograd raised {type(error).__name__}: {first_line(error)}") from error
    return list(found)


def _by_complex_step(pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array], dtype: Any) -> list[Array]:
    step, wide = (STEP, np.complex128) if dtype == np.float64 else (ROUGH_STEP, np.complex64)
    found = []
    for index in wrt:
        value = pair.inputs[index]
        gradient = np.zeros(value.size, dtype)
        for element in range(value.size):
            moved = value.astype(wide)
            moved.reshape(-1)[element] += 1j * step
            outputs = complex_outputs(pair, index, moved)
            if isinstance(outputs, str):
                raise RefusalError(f"the definition took complex input at first, and then did not: {outputs}.")
            gradient[element] = sum((d * y.imag).sum() for d, y in zip(dy, outputs, strict=True)) / step
        found.append(gradient.reshape(value.shape))
    return found


def _in(dtype: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.astype(dtype) if is_float(value) else value for value in inputs)


def named(word: str, arrays: Sequence[Array]) -> Arrays:
    """y, or y0, y1, … where there are several."""
    return {word if len(arrays) == 1 else f"{word}{i}": array for i, array in enumerate(arrays)}


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _moderate(value: Any) -> bool:
    if not is_float(value):
        return True
    size = np.abs(value[value != 0])
    return not size.size or (size.min() > 1 / ROUGH_RANGE and size.max() < ROUGH_RANGE)


# Sizes.


def letters_of(inputs: Sequence[Any], shapes: Sequence[str] | None) -> tuple[Letters, Dims]:
    """The axes of the inputs by name, and their sizes."""
    arrays = [value if isinstance(value, np.ndarray) else None for value in inputs]
    if shapes is not None:
        return _named_axes(arrays, shapes)
    letters = [[_letter(size) for size in array.shape] if array is not None else [] for array in arrays]
    dims = {_letter(size): size for array in arrays if array is not None for size in array.shape if size > 1}
    return letters, dims


def _letter(size: int) -> str:
    return "1" if size == 1 else f"n{size}"


def _named_axes(arrays: Sequence[Array | None], shapes: Sequence[str]) -> tuple[Letters, Dims]:
    if isinstance(shapes, str) or len(shapes) != len(arrays):
        raise TapelessError(
            f"shapes must say the axes of each of the {len(arrays)} inputs, such as ['R C', 'C', ''], not {shapes!r}."
        )
    letters, dims = [list(map(str, each.split())) for each in shapes], Dims()
    for number, (array, names) in enumerate(zip(arrays, letters, strict=True)):
        shape = () if array is None else array.shape
        if len(shape) != len(names):
            raise TapelessError(f"shapes says {' '.join(names)!r} of input {number}, which has {len(shape)} axes.")
        for name, size in zip(names, shape, strict=True):
            known = int(name) if name.isdigit() else dims.setdefault(name, size)
            if known != size:
                raise TapelessError(
                    f"shapes calls two axes {name}, but one is {known} and one, of input {number}, {size}."
                )
    return letters, dims


def other_sizes(letters: Letters, dims: Dims, largest: int, most: int) -> Iterator[Dims]:
    """All axes 1, all of them odd, then each by itself at the edges; no input with more than `most` numbers, for which
    the other axes shrink."""
    if not dims:
        return
    yield dict.fromkeys(dims, 1)
    yield dict(zip(dims, (ODD[i % len(ODD)] for i in range(len(dims))), strict=True))
    for letter in dims:
        for size in EDGES:
            for others in (max(dims.values()), SMALL, 2) if size <= largest else ():
                wanted = {each: size if each == letter else min(old, others) for each, old in dims.items()}
                if _largest(letters, wanted) <= most:
                    if wanted != dims:
                        yield wanted
                    break


def _largest(letters: Letters, dims: Dims) -> int:
    return max(prod(_size(letter, dims) for letter in each) for each in letters)


def _size(letter: str, dims: Dims) -> int:
    return int(letter) if letter.isdigit() else dims[letter]


def resized(inputs: Sequence[Any], letters: Letters, dims: Dims, rng: np.random.Generator) -> list[Any]:
    made: list[Any] = []
    for value, each in zip(inputs, letters, strict=True):
        shape = tuple(_size(letter, dims) for letter in each)
        if not isinstance(value, np.ndarray) or shape == value.shape or not value.size:
            made.append(value)
            continue
        drawn = rng.choice(value.reshape(-1), shape)
        if value.dtype.kind == "f":
            drawn = (drawn * rng.uniform(0.8, 1.2, shape)).astype(np.float32).astype(np.float64)
        made.append(drawn)
    return made


def title(names: Sequence[str], inputs: Sequence[Any]) -> str:
    """The sizes of the inputs, for people: x 3×65, weight 65."""
    arrays = [(name, value) for name, value in zip(names, inputs, strict=True) if isinstance(value, np.ndarray)]
    return ", ".join(f"{name} {'×'.join(map(str, value.shape)) or 'a number'}" for name, value in arrays)


def summed(result: Array, read: Sequence[Any]) -> int:
    """How many numbers go into one of the result: those axes of what is read that the result does not have; where it
    has them all, its own longest."""
    counts = []
    for value in read:
        if isinstance(value, np.ndarray):
            lacking: Counter[int] = Counter(value.shape) - Counter(result.shape)
            counts.append(prod(lacking.elements()))
    most = max(counts, default=1)
    return most if most > 1 else max(result.shape, default=1)


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


def shaped_at(definition: Definition, case: str, inputs: list[Any], dy: Arrays | np.random.Generator) -> At:
    """For a call whose gradients are not compared with what the definition says: zeros stand for these."""
    outputs, kept = definition.outputs(inputs)
    if isinstance(dy, np.random.Generator):
        drawn = [dy.normal(size=each.shape).astype(np.float32) for each in outputs]
        dy = named("dy", [np.asarray(each, np.float64) for each in drawn])
    zeros = {f"d{definition.names[index]}": np.zeros(inputs[index].shape) for index in definition.wrt}
    saved = named("saved", kept)
    return At(case, inputs, dy, {"forward": named("y", outputs) | saved, "backward": zeros}, {}, saved)


def evaluated_at(
    definition: Definition, directions: Iterable[str], case: str, inputs: list[Any], rng: np.random.Generator
) -> At:
    """What the definition says at these inputs, in the directions that the kernel has."""
    at = shaped_at(definition, case, inputs, rng)
    many = sum(each.size for each in inputs if is_float(each)) > (FEW if definition.way == "complex step" else MANY)
    true: dict[str, Arrays] = {}
    moved: dict[str, list[Arrays]] = {}
    for direction in directions:
        true[direction] = definition.results(direction, inputs, at.dy)
        moved[direction] = []
        for _ in range(2 if many else MOVES):
            off, dy_off = moved_by_a_rounding(inputs, list(at.dy.values()), rng)
            moved[direction].append(definition.results(direction, off, dict(zip(at.dy, dy_off, strict=True))))
    return replace(at, true=true, moved=moved)


def run(caller: Caller, direction: str, at: At, **ways: Any) -> Ran:
    """One call of the kernel; a backward after the forward that saves for it."""
    like = {name: x for name, x in at.true.get("forward", {}).items() if name not in at.saved}
    if direction == "forward":
        return caller.forward(at.inputs, like, at.saved, **ways)
    keeps: Any = at.saved
    if caller.pair.saved and "forward" in caller.forms:
        ran = caller.forward(at.inputs, like, at.saved)
        written = caller.forms["forward"].writes
        keeps = {name: ran.results[name] for name in at.saved} if written else ran.saved
    true = at.true[direction]
    return caller.backward(at.inputs, at.dy, keeps, true, **caller.plainly(true) | ways)


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


def moved_by_a_rounding(
    inputs: Sequence[Any], dy: Sequence[Array], rng: np.random.Generator
) -> tuple[list[Any], list[Array]]:
    return [_off(value, rng) for value in inputs], [_off(value, rng) for value in dy]


def _off(value: Any, rng: np.random.Generator) -> Any:
    return np.asarray(value * (1 + ROUNDING * rng.choice((-1.0, 1.0), value.shape))) if is_float(value) else value


# Extreme numbers.


class OwnTrial:
    """One direction of a kernel on inputs of one size; see `ranges.RangeTrial`."""

    name = "own kernel"

    def __init__(
        self, definition: Definition, caller: Caller, direction: str, inputs: Sequence[Any], dy: Sequence[Array]
    ) -> None:
        self.definition, self.caller, self.direction, self.inputs = definition, caller, direction, list(inputs)
        self.example: Example = {}
        self.rng = np.random.default_rng(0)
        self._dy = named("dy", dy) if direction == "backward" else {}
        arrays = {name: each for name, each in zip(definition.names, inputs, strict=True) if is_float(each)}
        self._given: Arrays = arrays | self._dy
        self.incoming = list(self._dy)
        self.ranged = [name for name, array in self._given.items() if array.size]
        self._positive = {name for name, array in arrays.items() if (array > 0).all()}
        true = self.true(self._given)
        read = list(self._given.values())
        # A norm has a sum inside, whose result has the shape of what it is of: it is not counted, as for our own.
        self.lengths = {result: sqrt(_lacking(value, read)) for result, value in true.items()}
        self.size = sum(map(np.size, read)) + sum(map(np.size, true.values()))

    def usual(self, rng: np.random.Generator) -> Arrays:
        return {name: rng.permuted(array) if array.ndim else array for name, array in self._given.items()}

    def extreme(self, argument: str, make: Kind, rng: np.random.Generator) -> Array:
        shape = self._given[argument].shape
        values = make(rng, shape or (1,)).reshape(shape)
        values = np.abs(values) if argument in self._positive else values
        return np.asarray(values.astype(np.float32), np.float64)

    def taken(self, numbers: Arrays) -> tuple[list[Any], Arrays]:
        inputs = [numbers.get(name, value) for name, value in zip(self.definition.names, self.inputs, strict=True)]
        return inputs, {name: numbers[name] for name in self._dy}

    def true(self, numbers: Arrays, move: Move | None = None) -> Arrays:
        if move is not None:
            moved = {name: array * (1 + MOVE * move(name, array.shape)) for name, array in numbers.items()}
            numbers = {name: np.asarray(array) for name, array in moved.items()}
        inputs, dy = self.taken(numbers)
        if self.direction == "forward":
            return _in_rows(named("y", self.definition.outputs(inputs)[0]))
        return _in_rows(self.definition.results(self.direction, inputs, dy))

    def found(self, numbers: Arrays) -> Arrays:
        at = shaped_at(self.definition, "", *self.taken(numbers))
        ran = run(self.caller, self.direction, at)
        return _in_rows({name: each for name, each in ran.results.items() if name not in at.saved})

    def moves(self) -> Iterator[Move]:
        for one in self.ranged:
            yield partial(only, one)
        yield from [self.at_random] * DRAWS

    def at_random(self, name: str, shape: Shape) -> Any:
        return self.rng.normal(size=shape)

    def forgiven(self, case: Case) -> None:
        """Errors of somebody else's kernel are measured by the result's largest element at least; and what the
        definition itself loses in float32, row by row, a kernel may lose, unless that is most of the result: then it
        has left the range of the type. Where the complex step is the definition, its own rounding is added."""
        inputs, dy = self.taken(case.numbers)
        if self.direction == "backward" and self.definition.way == "complex step":
            outputs = self.definition.outputs(inputs)[0]
            terms = sum(float(np.abs(d * y).sum()) for d, y in zip(dy.values(), outputs, strict=True))
            for index, (result, size) in zip(self.definition.wrt, case.sizes.items(), strict=True):
                typical = max(1.0, float(np.sqrt(np.mean(np.square(inputs[index])))))
                allowed = RANGES[self.name] * self.lengths[result]
                np.maximum(size, TOLERANCES["vanishing gradient"] * terms / typical / (ROUNDING * allowed), out=size)
        rough = self.definition.rough(inputs, list(dy.values()) if self.direction == "backward" else None)
        for number, (result, size) in enumerate(case.sizes.items()):
            largest = np.abs(case.true[result]).max(initial=0)
            np.maximum(size, largest, out=size)
            if rough is None:
                continue
            lost = np.abs(np.atleast_1d(rough[number]).astype(np.float64) - case.true[result])
            lost = np.where(np.isfinite(lost), lost, 0)
            if self.definition.pair.tensors:
                lost = np.where(lost <= DOUBTED * largest, lost, 0)
            row = lost.max(axis=-1, keepdims=True)
            np.maximum(size, LOCKSTEP_INHERENT * row / (ROUNDING * RANGES[self.name] * self.lengths[result]), out=size)


def _in_rows(arrays: Arrays) -> Arrays:
    return {name: np.atleast_1d(array).astype(np.float64) for name, array in arrays.items()}


def _lacking(result: Array, read: Sequence[Array]) -> int:
    """Numbers summed into one of the result; 1 where it has every axis of what is read."""
    count = summed(result, read)
    return 1 if count == max(result.shape, default=1) and all(each.size <= result.size for each in read) else count
