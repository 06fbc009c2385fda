"""`tapeless.check.kernel`: somebody else's kernel in a whole model, beside the reference and beside ours.

A walk over one training step. At each call of the op the kernel runs on the model's own memory, filled so that
nothing it forgets or touches in passing stays hidden; then the call is judged in lockstep with the float64 reference.
After that, a hundred steps of training with the kernel and without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from math import inf, isfinite, nan
from typing import Any

import numpy as np

from tapeless.backends.backend import Backend, backend_named, bind_call, run_call
from tapeless.backends.engine import Arena, Engine
from tapeless.check.configurations import Configuration
from tapeless.check.finding import Judgement
from tapeless.check.guarded import GARBAGE, bits, left_unwritten, unsteady, with_margins
from tapeless.check.lockstep import Difference, compare
from tapeless.check.own.harness import parameters_of
from tapeless.check.tolerances import LOCKSTEP_INHERENT, TOLERANCES
from tapeless.errors import TapelessError, unknown
from tapeless.kernels.native import Native
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.models.presets import preset as preset_named
from tapeless.ops import OPS
from tapeless.ops.contract import NONE, Array
from tapeless.program.call import Call
from tapeless.shown import Told

# Difference of the losses over 100 steps, beside the first loss, by type.
DRIFT = {dtype: TOLERANCES[f"{dtype} loss curve"] for dtype in ("float32", "float64")}
SMALL = {"layers": 2, "channels": 128, "heads": 4, "context": 32, "vocab": 256, "chunk": 24}
SPREAD = 0.1  # of the random weights of the walk
BATCHES = 4  # that training goes round and round, so that there is something to learn
TURNS, TURN_SECONDS = 9, 0.005  # of the race beside our own kernel
MARGIN = 1 << 16  # bytes before and after the model's memory that are watched too
LEARNING_RATE, CLIP = 1e-3, 1.0

OwnKernel = Callable[..., Any]
Batch = tuple[Array, Array]


@dataclass(frozen=True, repr=False)
class KernelReport(Judgement):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    name: str
    faults: tuple[str, ...]  # outputs not written, inputs changed, results that differ: one sentence each
    differences: tuple[Difference, ...]  # every result of every call of the kernel, beside the reference
    speeds: tuple[Speed, ...]
    steps: int
    drift: float  # the largest difference of the losses over the steps, beside the first loss; NaN where not run
    drift_allowed: float

    @property
    def first_wrong(self) -> Difference | None:
        """The first result that is not what the reference says."""
        return next((each for each in self.differences if not each.ok), None)

    @property
    def ok(self) -> bool:
        """Whether the kernel holds."""
        return not self.faults and self.first_wrong is None and (self.drift <= self.drift_allowed or not self.steps)

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {'holds' if self.ok else 'does not hold'}.", *(f"  {x}" for x in self._lines())]
        )

    def _lines(self) -> Iterator[str]:
        yield from self.faults
        wrong = [each for each in self.differences if not each.ok]
        calls = len({each.number for each in self.differences})
        if wrong:
            yield f"parity: {len(wrong)} of {len(self.differences)} results of {calls} calls are off, the first:"
            yield f"  {_place(wrong[0])}"
        elif self.differences:
            worst = max(self.differences, key=lambda each: each.error / each.tolerance)
            yield (
                f"parity: {len(self.differences)} results of {calls} calls agree with the float64 reference, the worst "
                f"at {worst.error / worst.tolerance:.0%} of what is allowed ({worst.argument} of {worst.call.title})"
            )
        for speed in self.speeds:
            yield f"speed: {speed}"
        if isfinite(self.drift):
            off = f"{self.drift:.1e} of the first (allowed {self.drift_allowed:.0e})"
            yield f"drift: over {self.steps} training steps the loss is off by at most {off}"
        elif self.drift == inf:
            yield f"drift: the loss does not stay finite over {self.steps} steps"


def _place(difference: Difference) -> str:
    return f"{difference.call.section}, {difference}"


def kernel(
    name: str,
    *,
    forward: OwnKernel | None = None,
    backward: OwnKernel | None = None,
    backend: str = "cpu",
    preset: str | None = None,
    batch: int = 2,
    time: int = 32,
    steps: int = 100,
    repeats: int = 3,
    seed: int = 0,
    **fields: Any,
) -> KernelReport:
    """Put your own forward, backward or both in the place of ours, and see whether the model notices.

    A kernel takes the arguments of ours (see `ops/<name>/reference.py`): outputs, inputs, scalars. It writes into the
    outputs and returns nothing. Where it has a parameter `add`, that holds the names of the outputs to add to; where it
    has none, it always overwrites, and adding is done for it. `preset` is one that uses the op, made small; any field
    can be overridden by name. `steps=0` leaves the training out.
    """
    swap = Swap(name, _checked_kernels(name, forward, backward))
    _check_count("steps", steps, 0)
    _check_count("repeats", repeats, 2)
    ours = backend_named(backend)
    if ours.name == "cuda":
        raise TapelessError("a kernel of yours is tried on NumPy's arrays: take backend='cpu' or 'reference'.")
    config = _config_with(swap, preset, fields)
    make = partial(Model, config, batch=batch, time=time, backend=backend, seed=seed)
    model = make()
    rng = np.random.default_rng(seed)
    made = Configuration(config.name, config.name, batch=batch, time=time, spread=SPREAD)
    batches = [made.batch_of(rng, model) for _ in range(BATCHES)]
    made.scramble(rng, model)
    yours = Swapped(ours, swap)
    with np.errstate(all="ignore"):  # what a wrong kernel leads to is part of the report
        faults, differences, speeds = walk(model, swap, yours, ours, batches[0], repeats)
        off, allowed = nan, DRIFT[model.precision.name]
        if steps and not faults:  # a kernel that writes where it should not could break anything
            without = losses(make(), ours, batches, steps)
            off = drift(losses(make(), yours, batches, steps), without)
            if allowed < off < inf:  # some models amplify every rounding: no kernel can be asked for less than that
                allowed += LOCKSTEP_INHERENT * drift(losses(make(), ours, batches, steps, shaken=True), without)
    return KernelReport(name, faults, differences, speeds, steps, off, allowed)


def _config_with(swap: Swap, preset: str | None, fields: dict[str, Any]) -> Preset:
    """The preset asked for, else the first that uses the op, made small."""
    names = (
        ("gpt2-4x256", "ops-102k", "cllm", "sunfish", "llama-4x256") if preset is None else (preset_named(preset).name,)
    )
    lacking = set(swap.kernels)
    for name in names:
        usual = PRESETS[name].architecture
        kept = {"features": 6, "vocab": usual.vocab} if usual.features else {}
        config = PRESETS[name].override(**SMALL | kept | fields)
        calls = transformer.training(config, 1, 1, Optimizer(config.optimizer)).calls
        missing = set(swap.kernels) - {call.direction for call in calls if swap.has(call)}
        if not missing:
            return config
        lacking = min(lacking, missing, key=len)
    raise TapelessError(
        f"the training step of {preset or 'every preset'} has no {swap.name}.{max(lacking)}: choose another preset, "
        f"a field such as activation='relu' or dropout=0.1, or leave that direction out."
    )


def _checked_kernels(name: str, forward: Any, backward: Any) -> dict[str, OwnKernel]:
    if name not in OPS:
        raise unknown("op", name, OPS)
    kernels = {"forward": forward, "backward": backward}
    given = {direction: function for direction, function in kernels.items() if function is not None}
    if not given:
        raise TapelessError("there is nothing to check: give forward=…, backward=… or both.")
    for direction, function in given.items():
        if not callable(function):
            raise TapelessError(f"{direction} must be a function, not {function!r}.")
    if "backward" in given and OPS[name].SPEC.backward is None:
        raise TapelessError(f"{name} has no backward: give its forward alone.")
    return given


def _check_count(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TapelessError(f"{what} must be a whole number of at least {least}, not {value!r}.")


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
    return any(each.name == "add" for each in parameters_of(function))


@dataclass(frozen=True)
class _Ground:
    """A model's memory once more, with a margin on either side in which nothing belongs."""

    whole: Array
    arena: Arena

    @classmethod
    def like(cls, arena: Arena) -> _Ground:
        whole, start = with_margins(arena.memory.size, MARGIN)
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
        bits(outputs.view(argument.view))[...] = -1
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
