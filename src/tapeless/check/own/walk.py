"""A training step with somebody else's kernel in it: what it writes, what it touches, what it computes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from math import inf, isfinite
from typing import Any

import numpy as np

from tapeless.backends.backend import Backend, bind_call, run_call
from tapeless.backends.engine import Arena, Engine
from tapeless.check.lockstep import Difference, compare
from tapeless.errors import TapelessError
from tapeless.kernels.native import Native
from tapeless.model import Model
from tapeless.ops.contract import NONE, Array
from tapeless.program.arena import ALIGNMENT
from tapeless.program.call import Call
from tapeless.shown import Told

OwnKernel = Callable[..., Any]
Batch = tuple[Array, Array]

TURNS, TURN_SECONDS = 9, 0.005  # of the race beside our own kernel
GARBAGE = 1.5  # what outputs are filled with, the last time, instead of NaN
MARGIN = 1 << 16  # bytes before and after the model's memory that are watched too
LEARNING_RATE, CLIP = 1e-3, 1.0


@dataclass(frozen=True)
class Swap:
    """The kernels under test, by direction, and the op they are for."""

    name: str
    kernels: Mapping[str, OwnKernel]

    def has(self, call: Call) -> bool:
        return call.op == self.name and call.direction in self.kernels


@dataclass(frozen=True, repr=False)
class Speed(Told):
    """One call of the op: how long the kernel takes and how long ours, each a median of turns."""

    call: Call
    yours: float  # seconds
    ours: float

    def __str__(self) -> str:
        shapes = ", ".join(f"{letter}={size}" for letter, size in self.call.dims.items())
        return (
            f"{self.call.title} ({shapes}) takes {1e6 * self.yours:,.1f} µs, ours {1e6 * self.ours:,.1f} µs: "
            f"{self.ours / self.yours:.2f}× as fast"
        )


def torch_kernel(function: OwnKernel) -> OwnKernel:
    """A kernel written for torch tensors: it sees the same memory as tensors, and writes into them."""
    import torch

    @wraps(function)
    def on_arrays(*arguments: Any, **options: Any) -> Any:
        return function(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arguments), **options)

    return on_arrays


class Swapped:
    """A backend that is another one but for the kernels under test."""

    def __init__(self, ours: Backend, swap: Swap) -> None:
        self._ours, self._swap = ours, swap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        if not any(self._swap.has(part) for part in call.parts):
            return self._ours.bind(call, arguments, options)
        if len(call.parts) > 1:  # every call has its own kernel
            pairs = zip(call.parts, arguments, strict=True)
            return [native for part, arrays in pairs for native in bind_call(part, arrays, self)]
        return [partial(_run_yours, self._swap.kernels[call.direction], call, arguments, options.get("add", NONE))]


def _run_yours(function: OwnKernel, call: Call, arguments: list[Any], add: frozenset[str]) -> Any:
    """Call the kernel; if it cannot add, let it overwrite something else and add that."""
    takes_add = can_add(function)
    places = [call.signature.arguments.index(name) for name in add]
    given = list(arguments)
    if not takes_add:
        for place in places:
            given[place] = np.full_like(arguments[place], np.nan)
    options = {"add": add} if add and takes_add else {}
    try:
        returned = function(*given, **options)
    except Exception as error:  # the user's own code: say which call it was, and keep the traceback
        raise TapelessError(
            f"your {call.title} raised {type(error).__name__} in {call.section}: {error}. It is given "
            f"{', '.join([*call.signature.arguments, *call.signature.scalars])}."
        ) from error
    if not takes_add:
        for place in places:
            arguments[place] += given[place]
    return returned


def can_add(function: OwnKernel) -> bool:
    try:
        return "add" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled: nobody wrote a signature
        return False


@dataclass(frozen=True)
class _Ground:
    """A model's memory once more, with a margin on either side in which nothing belongs."""

    whole: Array
    arena: Arena

    @classmethod
    def like(cls, arena: Arena) -> _Ground:
        whole = np.zeros(arena.memory.size + 2 * MARGIN + ALIGNMENT, np.uint8)
        start = MARGIN + -(whole.ctypes.data + MARGIN) % ALIGNMENT
        memory = whole[start : start + arena.memory.size]
        memory[...] = arena.memory
        return cls(whole, Arena(arena.plan, arena.backend, memory=memory))

    @property
    def start(self) -> int:
        return int(self.arena.memory.ctypes.data - self.whole.ctypes.data)


def walk(
    model: Model, swap: Swap, yours: Backend, ours: Backend, batch: Batch, repeats: int
) -> tuple[tuple[str, ...], tuple[Difference, ...], tuple[Speed, ...]]:
    """One step, call by call. After a call of the kernel the reference's result goes on, so each is judged alone."""
    model.feed(*batch)
    model.prepare_update(LEARNING_RATE, CLIP)
    ground = _Ground.like(model.engine)
    faults: dict[str, list[str]] = {}
    differences: list[Difference] = []
    speeds: dict[str, Speed] = {}
    for number, call in enumerate(model.program.calls):
        arrays = ground.arena.arguments(call)
        # What writes where it should not is not run again: who knows where it writes next.
        if not swap.has(call) or call.direction in faults:
            run_call(call, arrays, ours)
            continue
        before = ground.whole.copy()
        found = _faults(ground, number, call, swap.kernels[call.direction], repeats)
        ground.whole[...] = before
        if found:
            faults[call.direction] = found
            run_call(call, arrays, ours)
            continue
        exact = {name: _widened(array) for name, array in arrays.items()}
        differences += compare(call, arrays, exact, yours, number)
        if call.direction not in speeds:
            speeds[call.direction] = _race(call, bind_call(call, arrays, yours), bind_call(call, arrays, ours))
        ground.whole[...] = before
        for argument in call.writes:
            arrays[argument.name][...] = exact[argument.name]
    return tuple(each for some in faults.values() for each in some), tuple(differences), tuple(speeds.values())


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array.copy()


def _faults(ground: _Ground, number: int, call: Call, kernel: OwnKernel, repeats: int) -> list[str]:
    """What is wrong with the way it writes: past its outputs, not all of them, or not the same every time."""
    arrays = ground.arena.arguments(call)
    arguments = [arrays.get(name) for name in call.signature.arguments] + [value for _, value in call.scalars]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    add = added if can_add(kernel) else NONE  # a kernel that only overwrites is watched while it overwrites
    filled = [each.name for each in call.writes if each.mode == "write" or each.name in added - add]
    # Not scratch, of which a kernel may use a part, nor what has no NaN.
    filled = [name for name in filled if name != "logits" and arrays[name].dtype.kind == "f"]
    before, returned = ground.whole.copy(), None

    def result(fill: float) -> dict[str, Array]:
        nonlocal returned
        ground.whole[...] = before
        for name in filled:
            arrays[name][...] = fill
        returned = _run_yours(kernel, call, arguments, add)
        return {argument.name: arrays[argument.name].copy() for argument in call.writes}

    first, *again = [result(np.nan) for _ in range(repeats)]
    strays = list(_strays(ground, before, number, call))
    other = result(GARBAGE)
    unwritten = [sentence for name in filled for sentence in left_unwritten(name, first[name], other[name])]
    if unwritten and returned is not None and not isinstance(returned, int):  # a C function always returns a number
        unwritten.append(f"it returns a {type(returned).__name__}: a kernel writes into the outputs that it is given.")
    sentences = [*strays, *unsteady(first, again), *unwritten]
    return [f"{call.title} in {call.section}: {sentence}" for sentence in sentences]


def _strays(ground: _Ground, before: Array, number: int, call: Call) -> Iterator[str]:
    """Every byte of the model that is not an output must be as it was."""
    plan = ground.arena.plan
    marked = np.zeros_like(ground.whole)
    outputs = Arena(plan, ground.arena.backend, memory=marked[ground.start : ground.start + ground.arena.memory.size])
    for argument in call.writes:
        _bits(outputs.view(argument.view))[...] = -1
    changed = np.flatnonzero((ground.whole != before) & (marked == 0))
    if not changed.size:
        return
    offset = int(changed[0]) - ground.start
    owners = [
        placement.buffer
        for placement in plan.placements.values()
        if not placement.buffer.members
        and placement.offset <= offset < placement.offset + placement.bytes
        and any(first <= number <= last for first, last in placement.ranges)
    ]
    for argument in call.arguments:
        if argument.mode == "read" and any(part in owners for part in argument.view.buffer.parts):
            yield f"it changes its input {argument.name} ({argument.view.name}): a kernel writes into its outputs only."
            return
    whose = f"to {owners[0].name}, which it was not given" if owners else "to nothing it was given"
    yield f"it writes outside its outputs, into memory that belongs {whose}: an index runs past the end."


def unsteady(first: dict[str, Array], again: list[dict[str, Array]]) -> Iterator[str]:
    for name, once in first.items():
        differ = np.any([_bits(once) != _bits(each[name]) for each in again], axis=0)
        if differ.any():
            yield (
                f"{name} differs between {len(again) + 1} runs on the same inputs, at {where_of(differ)}: "
                f"a race, a random number, or memory that nobody set."
            )


def left_unwritten(name: str, on_nan: Array, on_number: Array) -> Iterator[str]:
    """What became of an output that was full of NaN, and of the same when it was full of a number."""
    untouched = np.isnan(on_nan) & (on_number == GARBAGE)
    if untouched.any():
        yield f"it does not write {name} at {where_of(untouched)}."
        return
    depends = (_bits(on_nan) != _bits(on_number)) & ~(np.isnan(on_nan) & np.isnan(on_number))
    if depends.any():
        yield (
            f"{name} depends on what it held before, at {where_of(depends)}: it is added to, or read, "
            f"where it should be overwritten."
        )


def _bits(array: Array) -> Array:
    return array.view(f"i{array.itemsize}")


def where_of(places: Array) -> str:
    first = tuple(int(axis) for axis in np.argwhere(places)[0])
    return f"{np.count_nonzero(places):,} of {places.size:,} places, first {first}"


def _race(call: Call, yours: list[Native], ours: list[Native]) -> Speed:
    """Turn by turn, so that a busy machine is busy for both; what the calls write does not matter here."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS + 1):
        for own, natives in ((True, yours), (False, ours)):
            taken = _turn(natives)
            if turn:  # the first warms up
                seconds[own].append(taken)
    return Speed(call, float(np.median(seconds[True])), float(np.median(seconds[False])))


def _turn(natives: list[Native]) -> float:
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < TURN_SECONDS:
        for native in natives:
            native()
        count += 1
    return (time.perf_counter() - start) / count


def drift(with_it: list[float], without: list[float]) -> float:
    """The largest difference of two courses of the loss, beside the first loss; infinite if one is not finite.

    Not beside the loss of the same step: once a small model knows its few batches by heart, that is next to nothing.
    """
    if not all(map(isfinite, with_it)):
        return inf
    return max(abs(one - other) for one, other in zip(with_it, without, strict=True)) / abs(without[0])


def losses(model: Model, backend: Backend, batches: list[Batch], steps: int, shaken: bool = False) -> list[float]:
    """The loss of each training step; with `shaken`, every weight is off by one rounding before every step."""
    engine = Engine(model.plan, backend, memory=model.engine.memory)
    rng, rounding = np.random.default_rng(0), float(np.finfo(model.precision.weight).eps) / 2
    found = []
    for step in range(steps):
        if shaken:
            for weight in model.params.values():
                weight *= 1 + 2 * rounding * rng.integers(-1, 2, weight.shape)
        model.feed(*batches[step % len(batches)])
        model.prepare_update(LEARNING_RATE, CLIP)
        engine.run()
        # What is not finite is not updated with, and the next loss would be none the worse for it.
        found.append(float(engine.read("loss")[0]) if engine.read("finite")[0] else inf)
    return found
