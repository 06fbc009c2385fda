"""Programs that are wrong but for one thing, made from right ones, and what a wrong one does to the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapeless.backends.backend import backend_named
from tapeless.backends.engine import Engine
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.parts.dropout import NUMBER
from tapeless.program.arena import make_plan
from tapeless.program.call import Argument, Buffer, Call, Program, gradient_name
from tapeless.program.precision import PRECISIONS

reference = backend_named("reference")

BASE = Preset.of("small", layers=2, channels=4, heads=2, vocab=5, context=3, hidden=4, chunk=4)
CHANGES: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 1},
    "recomputed": {"recompute": True},
    "post-norm": {"placement": "post", "activation": "relu", "tied": False, "positions": "sinusoidal", "causal": False},
    "post-norm recomputed": {"placement": "post", "recompute": True, "layers": 1},
    "one answer": {"readout": "last", "layers": 1, "tied": False},
    "one answer post-norm": {"readout": "last", "placement": "post", "causal": False, "layers": 2, "recompute": True},
    "signal": {"features": 4, "tied": False, "layers": 1},
    "dropped": {"dropout": 0.4, "recompute": True, "layers": 1},
    "dropped post-norm": {"dropout": 0.4, "placement": "post", "readout": "last", "layers": 1},
    "llama": {
        "layers": 1,
        "positions": "rotary",
        "norm_kind": "rmsnorm",
        "activation": "swiglu",
        "head_width": 4,
        "kv_heads": 1,
        "query_key_norm": True,
        "attention_bias": False,
        "mlp_bias": False,
        "window": 2,
    },
    "adapted": {
        "layers": 1,
        "positions": "rotary",
        "attention_bias": False,
        "mlp_bias": False,
        "lora": 1,
        "lora_targets": ("q", "v", "down"),
        "train": ("embedding",),
    },
    "embedding space": {"loss": "squared_error", "activation": "tanh", "layers": 1},
}
# adamw squares gradients of any sign; with sgd a wrong scale or a lost part is not evened out.
OPTIMIZERS = {"recomputed": "adamw", "signal": "momentum"}
BATCH, TIME = 2, 3


def right(name: str) -> Program:
    optimizer = Optimizer(OPTIMIZERS.get(name, "sgd"))
    return transformer.training(BASE.override(**CHANGES[name]), BATCH, TIME, optimizer, weighted=name == "signal")


@dataclass(frozen=True)
class Mutant:
    what: str
    program: Program


def mutants(program: Program) -> Iterator[Mutant]:
    """Every call dropped, doubled, moved, put into another phase; every argument left out, exchanged, sent elsewhere,
    written for added to; every scalar changed."""
    calls = program.calls

    def made(what: str, index: int, *instead: Call) -> Mutant:
        changed = (*calls[:index], *instead, *calls[index + 1 :])
        return Mutant(f"{what}: {index} {calls[index].at} {calls[index].arguments[0].view.name}", _of(changed, program))

    for index, call in enumerate(calls):
        yield made("drop", index)
        yield made("double", index, call, call)
        if index:
            earlier = (*calls[: index - 1], call, calls[index - 1], *calls[index + 1 :])
            yield Mutant(f"earlier: {index} {call.at} {call.arguments[0].view.name}", _of(earlier, program))
        for target in (0, len(calls) // 2, len(calls) - 1):
            rest = [*calls[:index], *calls[index + 1 :]]
            rest.insert(target, call)
            yield Mutant(f"to {target}: {index} {call.at} {call.arguments[0].view.name}", _of(tuple(rest), program))
        for phase in ("zero", "forward", "recompute", "backward", "clip", "update"):
            if phase != call.phase:
                yield made(f"phase {phase}", index, replace(call, phase=phase))
        for name, value in call.scalars:
            if isinstance(value, bool):
                yield made(f"not {name}", index, _with_scalar(call, name, not value))
            elif isinstance(value, int):
                yield made(f"other {name}", index, _with_scalar(call, name, value + 1))
            elif isinstance(value, float):
                yield made(f"other {name}", index, _with_scalar(call, name, value * 2 + 0.25))
        for position, argument in enumerate(call.arguments):
            if argument.name in call.signature.optional:
                yield made(f"no {argument.name}", index, _with(call, position, None))
            for mode in {"write": ("add",), "add": ("write",)}.get(argument.mode, ()):
                if argument.name in call.signature.adds:
                    yield made(f"{mode} {argument.name}", index, _with(call, position, replace(argument, mode=mode)))
            for after, other in enumerate(call.arguments[position + 1 :], position + 1):
                if other.view.shape == argument.view.shape and other.view != argument.view:
                    first, second = replace(argument, view=other.view), replace(other, view=argument.view)
                    swapped = _with(_with(call, position, first), after, second)
                    yield made(f"{argument.name} ↔ {other.name}", index, swapped)
            for buffer in _alike(program, argument):
                elsewhere = replace(argument, view=buffer.all)
                yield made(f"{argument.name} → {buffer.name}", index, _with(call, position, elsewhere))


def _of(calls: tuple[Call, ...], program: Program) -> Program:
    """With the buffers that it uses, as the builder leaves them, and those that every program keeps."""
    used = {part for call in calls for a in call.arguments for part in (a.view.buffer, *a.view.buffer.parts)}
    kept = tuple(buffer for buffer in program.buffers if buffer.kind != "workspace" or buffer in used)
    return Program(calls, kept)


def _with(call: Call, position: int, argument: Argument | None) -> Call:
    new = () if argument is None else (argument,)
    return replace(call, arguments=(*call.arguments[:position], *new, *call.arguments[position + 1 :]))


def _with_scalar(call: Call, name: str, value: Any) -> Call:
    return replace(call, scalars=tuple((n, value if n == name else old) for n, old in call.scalars))


def _alike(program: Program, argument: Argument) -> list[Buffer]:
    """Other buffers that would fit: up to three of each kind."""
    found: dict[str, list[Buffer]] = {}
    for buffer in program.buffers:
        fits = (buffer.shape, buffer.role) == (argument.view.shape, argument.view.buffer.role)
        if fits and buffer != argument.view.buffer:
            found.setdefault(buffer.kind, []).append(buffer)
    return [buffer for group in found.values() for buffer in group[:3]]


def is_derivative(program: Program) -> bool:
    """Whether the gradients that the program leaves behind are those of the loss that it computes: along one direction
    through all weights, by complex step; and whether a second pass that does not zero them adds the same again."""
    rng = np.random.default_rng(0)
    engine = _prepared(program, "float64", rng)
    directions = {weight.name: rng.normal(size=weight.shape) for weight in program.trained}
    _run(engine, "zero")
    drawn = _drawn(engine)
    _run(engine, *STEP)
    once = _gradients(program, engine)
    _draw_again(engine, drawn)
    _run(engine, *STEP)
    twice = _gradients(program, engine)
    found = sum(float((once[name] * direction).sum()) for name, direction in directions.items())
    probe = _prepared(program, "complex128", np.random.default_rng(0))
    for weight in program.trained:
        probe.view(weight)[...] += 1e-30j * directions[weight.name]
    _run(probe, "zero")
    _run(probe, *STEP)
    true = float(probe.read("loss")[0].imag / 1e-30)
    doubled = all(np.allclose(twice[name], 2 * once[name], rtol=1e-9, atol=1e-12) for name in once)
    return doubled and abs(found - true) <= 1e-9 * max(1.0, abs(true))


def _prepared(program: Program, dtype: str, rng: np.random.Generator) -> Engine:
    engine = Engine(make_plan(program, PRECISIONS[dtype]), reference)
    engine.poison()
    for name in sorted(engine.plan.placements):
        buffer = engine.plan.placements[name].buffer
        if not buffer.members and buffer.kind in ("weight", "frozen", "state", "constant", "input"):
            engine.write(buffer, _start(buffer, rng))
    return engine


STEP = ("forward", "recompute", "backward")


def _drawn(engine: Engine) -> Any:
    return engine.read(NUMBER).copy() if NUMBER in engine.plan.placements else None


def _draw_again(engine: Engine, drawn: Any) -> None:
    """A second pass is to be judged on the same random numbers."""
    if drawn is not None:
        engine.write(NUMBER, drawn)


def _run(engine: Engine, *phases: str) -> None:
    with np.errstate(all="ignore"):
        engine.run(*phases)


def _gradients(program: Program, engine: Engine) -> dict[str, Any]:
    return {weight.name: engine.read(gradient_name(weight.name)).copy() for weight in program.trained}


def _buffer(program: Program, name: str) -> Buffer:
    return next(buffer for buffer in program.buffers if buffer.name == name)


def _start(buffer: Buffer, rng: np.random.Generator) -> Any:
    fixed: dict[str, Any] = {"count": 6.0, "limit": 0.7, "largest": 1e19, "lr": 0.3, "step": 3}
    if buffer.name in fixed:
        return fixed[buffer.name]
    if buffer.role == "index":
        return rng.integers(0, 5, buffer.shape)
    values = rng.choice([-1.0, 1.0], buffer.shape) * rng.uniform(0.2, 1.2, buffer.shape)
    return np.abs(values) if buffer.kind == "state" or buffer.name == "class_weights" else values
