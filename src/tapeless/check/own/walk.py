"""A training step with somebody else's kernel in it: what it writes, what it touches, what it computes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from math import inf, isfinite
from types import ModuleType
from typing import Any

import numpy as np

from tapeless.backends.execute import Bound, Run, arguments_of, bind, bind_call, execute
from tapeless.check.lockstep import Difference, compare
from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.ops.contract import NONE, Array
from tapeless.program.arena import ALIGNMENT, Arena
from tapeless.program.call import Call

Kernel = Callable[..., Any]
Batch = tuple[Array, Array]

TURNS, TURN_SECONDS = 9, 0.005  # of the race beside our own kernel
GARBAGE = 1.5  # what outputs are filled with, the last time, instead of NaN
MARGIN = 1 << 16  # bytes before and after the model's memory that are watched too
LEARNING_RATE, CLIP = 1e-3, 1.0


@dataclass(frozen=True)
class Swap:
    """The kernels under test, by direction, and the op they are for."""

    name: str
    kernels: Mapping[str, Kernel]

    def has(self, call: Call) -> bool:
        return call.op == self.name and call.direction in self.kernels


@dataclass(frozen=True)
class Speed:
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


def torch_kernel(function: Kernel) -> Kernel:
    """A kernel written for torch tensors: it sees the same memory as tensors, and writes into them."""
    import torch

    @wraps(function)
    def on_arrays(*arguments: Any, **options: Any) -> Any:
        return function(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arguments), **options)

    return on_arrays


def swapped(ours: ModuleType, swap: Swap) -> ModuleType:
    """A backend that is ours but for the kernels under test."""
    backend = ModuleType(f"{ours.__name__} with another {swap.name}")

    def bind_yours(call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Run]:
        if not swap.has(call):
            runs: list[Run] = ours.bind(call, arguments, options)
            return runs
        return [partial(_run_yours, swap.kernels[call.direction], call, arguments, options.get("add", NONE))]

    backend.__dict__.update(
        DEFAULT_PRECISION=ours.DEFAULT_PRECISION, PRECISIONS=ours.PRECISIONS, bind=bind_yours, begin=ours.begin
    )
    return backend


def _run_yours(function: Kernel, call: Call, arguments: list[Any], add: frozenset[str]) -> Any:
    """Call the kernel; if it cannot add, let it overwrite something else and add that."""
    takes_add = _takes_add(function)
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


def _takes_add(function: Kernel) -> bool:
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
        whole = np.zeros(arena.block.size + 2 * MARGIN + ALIGNMENT, np.uint8)
        start = MARGIN + -(whole.ctypes.data + MARGIN) % ALIGNMENT
        block = whole[start : start + arena.block.size]
        block[...] = arena.block
        return cls(whole, Arena(arena.plan, block=block))

    @property
    def start(self) -> int:
        return int(self.arena.block.ctypes.data - self.whole.ctypes.data)


def walk(
    model: Model, swap: Swap, yours: ModuleType, ours: ModuleType, batch: Batch, repeats: int
) -> tuple[tuple[str, ...], tuple[Difference, ...], tuple[Speed, ...]]:
    """One step, call by call. After a call of the kernel the reference's result goes on, so each is judged alone."""
    model.feed(*batch)
    model.prepare_update(LEARNING_RATE, CLIP)
    ground = _Ground.like(model.arena)
    faults: dict[str, list[str]] = {}
    differences: list[Difference] = []
    speeds: dict[str, Speed] = {}
    for number, call in enumerate(model.program.calls):
        arrays = arguments_of(call, ground.arena)
        # What writes where it should not is not run again: who knows where it writes next.
        if not swap.has(call) or call.direction in faults:
            _run(bind_call(call, arrays, ours))
            continue
        before = ground.whole.copy()
        found = _faults(ground, number, call, swap.kernels[call.direction], repeats)
        ground.whole[...] = before
        if found:
            faults[call.direction] = found
            _run(bind_call(call, arrays, ours))
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


def _run(bound: Bound) -> None:
    for _ in execute([bound]):
        pass


def _faults(ground: _Ground, number: int, call: Call, kernel: Kernel, repeats: int) -> list[str]:
    """What is wrong with the way it writes: past its outputs, not all of them, or not the same every time."""
    arrays = arguments_of(call, ground.arena)
    arguments = [arrays.get(name) for name in call.signature.arguments] + [value for _, value in call.scalars]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    add = added if _takes_add(kernel) else NONE  # a kernel that only overwrites is watched while it overwrites
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
    unwritten = [sentence for name in filled for sentence in _unwritten(name, first[name], other[name])]
    if unwritten and returned is not None and not isinstance(returned, int):  # a C function always returns a number
        unwritten.append(f"it returns a {type(returned).__name__}: a kernel writes into the outputs that it is given.")
    sentences = [*strays, *_unsteady(first, again), *unwritten]
    return [f"{call.title} in {call.section}: {sentence}" for sentence in sentences]


def _strays(ground: _Ground, before: Array, number: int, call: Call) -> Iterator[str]:
    """Every byte of the model that is not an output must be as it was."""
    plan = ground.arena.plan
    marked = np.zeros_like(ground.whole)
    outputs = Arena(plan, block=marked[ground.start : ground.start + ground.arena.block.size])
    for argument in call.writes:
        _bits(outputs.array(argument.view))[...] = -1
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


def _unsteady(first: dict[str, Array], again: list[dict[str, Array]]) -> Iterator[str]:
    for name, once in first.items():
        differ = np.any([_bits(once) != _bits(each[name]) for each in again], axis=0)
        if differ.any():
            yield (
                f"{name} differs between {len(again) + 1} runs on the same inputs, at {_where(differ)}: "
                f"a race, a random number, or memory that nobody set."
            )


def _unwritten(name: str, on_nan: Array, on_number: Array) -> Iterator[str]:
    """What became of an output that was full of NaN, and of the same when it was full of a number."""
    untouched = np.isnan(on_nan) & (on_number == GARBAGE)
    if untouched.any():
        yield f"it does not write {name} at {_where(untouched)}."
        return
    depends = (_bits(on_nan) != _bits(on_number)) & ~(np.isnan(on_nan) & np.isnan(on_number))
    if depends.any():
        yield (
            f"{name} depends on what it held before, at {_where(depends)}: it is added to, or read, "
            f"where it should be overwritten."
        )


def _bits(array: Array) -> Array:
    return array.view(f"i{array.itemsize}")


def _where(places: Array) -> str:
    first = tuple(int(axis) for axis in np.argwhere(places)[0])
    return f"{np.count_nonzero(places):,} of {places.size:,} places, first {first}"


def _race(call: Call, yours: Bound, ours: Bound) -> Speed:
    """Turn by turn, so that a busy machine is busy for both; what the calls write does not matter here."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS + 1):
        for own, bound in ((True, yours), (False, ours)):
            taken = _turn(bound)
            if turn:  # the first warms up
                seconds[own].append(taken)
    return Speed(call, float(np.median(seconds[True])), float(np.median(seconds[False])))


def _turn(bound: Bound) -> float:
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < TURN_SECONDS:
        _run(bound)
        count += 1
    return (time.perf_counter() - start) / count


def drift(with_it: list[float], without: list[float]) -> float:
    """The largest difference of two courses of the loss, beside the first loss; infinite if one is not finite.

    Not beside the loss of the same step: once a small model knows its few batches by heart, that is next to nothing.
    """
    if not all(map(isfinite, with_it)):
        return inf
    return max(abs(one - other) for one, other in zip(with_it, without, strict=True)) / abs(without[0])


def losses(model: Model, backend: ModuleType, batches: list[Batch], steps: int, shaken: bool = False) -> list[float]:
    """The loss of each training step; with `shaken`, every weight is off by one rounding before every step."""
    bound = bind(model.program.calls, model.arena, backend)
    rng, rounding = np.random.default_rng(0), float(np.finfo(model.precision.weight).eps) / 2
    found = []
    for step in range(steps):
        if shaken:
            for weight in model.params.values():
                weight *= 1 + 2 * rounding * rng.integers(-1, 2, weight.shape)
        model.feed(*batches[step % len(batches)])
        model.prepare_update(LEARNING_RATE, CLIP)
        for _ in execute(bound):
            pass
        found.append(float(model.arena.array(model.plan.placements["loss"].buffer)[0]))
    return found
