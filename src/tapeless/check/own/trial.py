"""A kernel and its definition on extreme numbers: what `check/ranges.py` asks of our own ops, for somebody else's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from tapeless.check.examples import Example
from tapeless.check.own.calling import Caller
from tapeless.check.own.definition import Definition, is_float
from tapeless.check.own.sizes import summed
from tapeless.check.range_numbers import Kind
from tapeless.check.ranges import DRAWS, MOVE, ROUNDING, Case, Move, only
from tapeless.check.tolerances import LOCKSTEP_INHERENT, RANGES, TOLERANCES
from tapeless.ops.contract import Array, Shape

Arrays = dict[str, Array]
DOUBTED = 2.0**-10  # of a result's largest element: torch in float32 loses more only where it overflows


def named(word: str, arrays: Sequence[Array]) -> Arrays:
    """y, or y0, y1, … where there are several."""
    return {word if len(arrays) == 1 else f"{word}{i}": array for i, array in enumerate(arrays)}


class OwnTrial:
    """One direction of a kernel on inputs of one size; see `ranges.Tried`."""

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
        gradients = self.definition.gradients(inputs, list(dy.values()))
        names = [f"d{self.definition.names[index]}" for index in self.definition.wrt]
        return _in_rows(dict(zip(names, gradients, strict=True)))

    def found(self, numbers: Arrays) -> Arrays:
        inputs, dy = self.taken(numbers)
        outputs, kept = self.definition.outputs(inputs)
        like, saved = named("y", outputs), named("saved", kept)
        ran = None
        if "forward" in self.caller.forms and (self.direction == "forward" or self.definition.pair.saved):
            ran = self.caller.forward(inputs, like, saved)
            if self.direction == "forward":
                return _in_rows({name: ran.results[name] for name in like})
        keeps: Any = saved if ran is None else saved_of(ran.results, ran.saved, saved, self.caller)
        shapes = {f"d{self.definition.names[i]}": inputs[i] for i in self.definition.wrt}
        return _in_rows(self.caller.backward(inputs, dy, keeps, shapes, **self.caller.plainly(shapes)).results)

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


def saved_of(results: Arrays, returned: Any, saved: Arrays, caller: Caller) -> Any:
    """What a kernel's forward has kept for its backward: arrays that it wrote, or what it returned."""
    return {name: results[name] for name in saved} if caller.forms["forward"].writes else returned
