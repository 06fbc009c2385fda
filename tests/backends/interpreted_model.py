"""A whole model on the CUDA backend beside the reference, in float32, run by Triton's interpreter on the CPU.

The interpreter must be chosen before Triton is imported, so `test_cuda` runs this in a process of its own:
TRITON_INTERPRET=1 python -m tests.backends.interpreted_model differences|together|ahead
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tapeless.backends.device import Device
from tapeless.check.lockstep import lockstep
from tapeless.check.ops import check_backend_alone
from tapeless.errors import NonFiniteError
from tapeless.inputs import Packed
from tapeless.model import GRADIENTS, Model
from tapeless.models.config import Optimizer
from tapeless.program.call import gradient_name
from tapeless.train.loop import Event, Step, Trainer, train
from tapeless.train.settings import Settings
from tests.train.test_loop import Given

SMALL: dict[str, Any] = {
    "dropout": 0.2,
    "layers": 1,
    "channels": 8,
    "heads": 2,
    "hidden": 16,
    "vocab": 11,
    "context": 6,
}
OPTIMIZER = Optimizer("adamw", eps=1e-4)  # a key's bias has no gradient but roundings: these are to stay small
OFF = 2e-5  # a few roundings of float32, after three steps


def documents() -> Iterator[str]:
    """A model with all that today's have: shared heads, a window, documents in a row, norms of queries and keys."""
    fields = SMALL | {"heads": 4, "kv_heads": 2, "window": 3, "query_key_norm": True, "dropout": 0.0}
    model, reference = (
        Model("llama-4x256", batch=2, time=5, backend=backend, optimizer=None, seed=3, **fields)
        for backend in (Device("cpu"), "reference")
    )
    for name in model.params:
        reference.write(name, model.read(name))
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 11, (2, 5)), rng.integers(-1, 11, (2, 5))
    packed = Packed(tokens, np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 2]]))
    yield from compared("loss", [each.forward_backward(packed, targets) for each in (model, reference)])
    for name in model.grads:
        yield from compared(f"gradient of {name}", [each.read(gradient_name(name)) for each in (model, reference)])
    words = [each.generate([1, 2, 3], 3, temperature=0) for each in (model, reference)]
    yield from [] if words[0] == words[1] else [f"generates {words[0]}, the reference {words[1]}"]


def muon() -> Iterator[str]:
    """Some steps of Muon, of which one meets a gradient that is not finite and changes nothing."""
    fields = SMALL | {"dropout": 0.0, "layers": 1, "tied": False}
    model, reference = (
        Model("llama-4x256", batch=2, time=5, backend=backend, optimizer="muon", seed=3, kv_heads=1, **fields)
        for backend in (Device("cpu"), "reference")
    )
    for name in model.params:
        reference.write(name, model.read(name))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 11, (2, 2, 6))
    for number, batch in enumerate(tokens):
        made = [each.step(batch[:, :-1], batch[:, 1:], lr=1e-2, clip=0.5) for each in (model, reference)]
        yield from compared(f"step {number} of Muon", [[each.loss, each.norm] for each in made])
    for name in (*model.params, *model.state):
        yield from compared(f"{name} after Muon", [each.read(name) for each in (model, reference)])
    yield from (str(found) for found in lockstep(model, reference, batch[:, :-1], batch[:, 1:]) if not found.ok)
    model.write("norm.weight", np.full(8, np.nan))
    kept = {name: model.read(name).tobytes() for name in (*model.params, *model.state)}
    refused = model.step(batch[:, :-1], batch[:, 1:], lr=1e-2)
    if refused.finite or kept != {name: model.read(name).tobytes() for name in kept}:
        yield "a step of Muon that is not finite has changed something"


def differences() -> Iterator[str]:
    yield from documents()
    yield from muon()
    model, reference = (
        Model("gpt2-4x256", batch=2, time=5, backend=backend, optimizer=OPTIMIZER, seed=3, **SMALL)
        for backend in (Device("cpu"), "reference")
    )
    for name in model.params:
        reference.write(name, model.read(name))
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 11, (2, 5)), rng.integers(-1, 11, (2, 5))
    first, second = (tokens[:, ::-1], targets), (tokens, targets[:, ::-1])
    for step in range(2):
        made = [each.step(tokens, targets, lr=1e-2, clip=0.5) for each in (model, reference)]
        yield from compared(f"step {step}", [[each.loss, each.norm] for each in made])
    for batch, again in ((first, False), (second, True)):
        losses = [each.forward_backward(*batch, accumulate=again, count=20) for each in (model, reference)]
        yield from compared("accumulated loss", losses)
    for name in model.grads:
        yield from compared(f"gradient of {name}", [each.read(gradient_name(name)) for each in (model, reference)])
    yield from compared("norm", [each.update(1e-2) for each in (model, reference)])
    for name in model.params:
        yield from compared(name, [each.read(name) for each in (model, reference)])
    yield from compared("loss", [each.loss(tokens, targets) for each in (model, reference)])
    yield from compared("scores", [each.logits(tokens[:1, :3]) for each in (model, reference)])
    words = [each.generate([1, 2, 3], 4, temperature=0, window=6) for each in (model, reference)]
    yield from [] if words[0] == words[1] else [f"generates {words[0]}, the reference {words[1]}"]
    yield from (str(found) for found in lockstep(model, reference, tokens, targets) if not found.ok)
    yield from (str(found) for found in check_backend_alone("attention", Device("cpu")))  # with scores in the hundreds
    if not isinstance(model.params["tokens.weight"], torch.Tensor):
        yield "params are no tensors"
    model.write("norm.weight", np.full(8, np.nan))
    kept = {name: model.read(name).tobytes() for name in (*model.params, *model.state)}
    refused = model.step(tokens, targets, lr=1e-2)
    if refused.finite or kept != {name: model.read(name).tobytes() for name in kept}:
        yield "a step that is not finite has changed something"


WIRINGS: dict[str, dict[str, Any]] = {
    "pre-norm": {"layers": 2},
    "recomputed": {"recompute": True},
    "post-norm": {"placement": "post"},
    "frozen": {"layers": 2, "frozen": ("blocks.1.mlp.up.*", "blocks.1.mlp.down.weight", "blocks.0.attn.qkv.bias")},
    "relu": {"activation": "relu"},
    "dropped": {"dropout": 0.1},
    "llama": {"preset": "llama-4x256", "kv_heads": 1},
    "llama with biases": {"preset": "llama-4x256", "attention_bias": True, "mlp_bias": True},
    "adapted": {"lora": 2},
    "llama adapted": {"preset": "llama-4x256", "lora": 2, "layers": 2, "attention_bias": True, "keep_norms": True},
    "parts adapted": {"preset": "llama-4x256", "lora": 2, "lora_targets": ("q", "up", "down")},
    "no gaps between gradients": {"channels": 16, "hidden": 32, "vocab": 16},
}
AFFINE, ADAPTED_BACK = "linear.forward linear.forward", "adapt.backward linear.backward linear.backward"
BOUND_AS_ONE = {
    "linear.forward gelu.forward",
    "rope.forward rope.forward",
    "rope.backward rope.backward",
    "residual.forward layernorm.forward",
    "layernorm.backward layernorm.forward linear.backward",
    "layernorm.backward layernorm.forward gelu.forward linear.backward gelu.backward linear.backward",
    "layernorm.backward gelu.forward linear.backward gelu.backward linear.backward",
    "residual.forward rmsnorm.forward",
    "rmsnorm.backward rmsnorm.forward linear.backward",
    "rmsnorm.backward rmsnorm.forward swiglu.forward linear.backward swiglu.backward linear.backward",
    f"{AFFINE} adapt.forward adapt.forward adapt.forward",
    f"{AFFINE} adapt.forward adapt.forward",
    f"{AFFINE} adapt.forward",
    f"layernorm.backward layernorm.forward gelu.forward {ADAPTED_BACK} gelu.backward {ADAPTED_BACK}",
    f"rmsnorm.backward {ADAPTED_BACK}",
    f"rmsnorm.backward swiglu.forward {ADAPTED_BACK} swiglu.backward adapt.backward {ADAPTED_BACK}",
}
PLACED_OVER = {("dup", "up"), ("dgate_up", "gate_up"), ("dact", "act")}


def together() -> Iterator[str]:
    """Fused calls beside the same calls one by one, in memory that held NaN before; and a step walked beside the same
    step run: there every bit is the same."""
    seen, placed_over = set(), set()
    for wiring, fields in WIRINGS.items():
        fields = {"preset": "gpt2-4x256"} | SMALL | {"dropout": 0.0} | fields
        name = fields.pop("preset")
        model = Model(name, batch=2, time=5, backend=Device("cpu"), optimizer=None, seed=3, **fields)
        rng = np.random.default_rng(0)
        for weight in (each for each in model.params if each.endswith("lora_b")):  # which begins as 0, and hides all
            model.write(weight, 0.1 * rng.normal(size=model.params[weight].shape))
        batch = rng.integers(0, 11, (2, 5)), rng.integers(0, 11, (2, 5))
        found = []
        for run in (model.engine.run, partial(walked, model), partial(one_by_one, model)):
            model.engine.poison()
            model.feed(*batch)
            model.draws = 0  # what was dropped is dropped again
            run("zero", *GRADIENTS)
            found.append({name: model.read(name).copy() for name in ("loss", *map(gradient_name, model.grads))})
        for name in found[0]:
            yield from compared(f"{wiring}: {name}", [found[0][name], found[2][name]])
            if found[0][name].tobytes() != found[1][name].tobytes():
                yield f"{wiring}: {name} has other bits when it is walked"
        placed_over |= {(above.split(".")[-1], below.split(".")[-1]) for above, below in model.plan.over.items()}
        seen |= {" ".join(part.title for part in call.parts) for call in model.plan.program.calls}
        yield from [f"{wiring}: still zeroes"] if model.engine.lowered("zero", *GRADIENTS).phase("zero") else []
    yield from [f"bound as one: {sorted(seen)}"] if not seen >= BOUND_AS_ONE else []
    yield from [f"placed over: {placed_over}"] if placed_over != PLACED_OVER else []


def walked(model: Model, *phases: str) -> None:
    calls = [call for call in model.program.calls if call.phase in phases]
    for call, expected in zip(model.engine.walk(*phases), calls, strict=True):
        assert call is expected
        for argument in call.writes:
            if argument.name != "logits" and not np.isfinite(model.engine.read(argument.view)).all():
                raise AssertionError(f"{argument.view.name} is not finite where {call.at} has run")


def one_by_one(model: Model, *phases: str) -> None:
    """Every call by itself, as it was written: zeroing, and adding to what was zeroed."""
    for number, call in enumerate(model.program.calls):
        if call.phase in phases:
            for native in model.engine._bind((number, number), call):
                native()


def compared(what: str, values: Any) -> Iterator[str]:
    found, true = (np.asarray(value, np.float64) for value in values)
    error = np.abs(found - true).max() / (np.abs(true).max() or 1.0)
    if not error <= OFF:
        yield f"{what} is off by {error:.1e}"


def spoiled(model: Model, known: int, seen: list[Step], event: Event) -> None:
    """Note an update; after the known one a weight becomes NaN."""
    if isinstance(event, Step):
        seen.append(event)
        if event.number == known:
            model.write("norm.weight", np.full(8, np.nan))


def ahead() -> Iterator[str]:
    """A training that launches an update before it looks at the last, beside one that waits; before update 4 a weight
    becomes NaN. Nothing runs meanwhile here, but what is kept, and what is refused, is the device's own."""
    rng = np.random.default_rng(0)
    given = [(rng.integers(0, 11, (2, 5)), rng.integers(-1, 11, (2, 5))) for _ in range(6)]
    found = []
    for runs_ahead, known in ((False, 3), (True, 2)):  # then update 3 is in flight
        device = Device("cpu")
        device.traits = replace(device.traits, asynchronous=runs_ahead)
        model = Model("gpt2-4x256", batch=2, time=5, backend=device, optimizer=OPTIMIZER, seed=3, **SMALL)
        asked = Settings(steps=6, lr=1e-2, log_every=6, eval_every=6, save_every=6)
        trainer = Trainer(model, Given(given), asked)
        seen: list[Step] = []
        try:
            train(trainer, partial(spoiled, model, known, seen))
        except NonFiniteError as error:
            kept = {name: model.read(name).tobytes() for name in (*model.params, *model.state)}
            found.append((seen, str(error), kept, trainer.state()))
    if len(found) != 2 or found[0] != found[1]:
        yield "running ahead is another training"
    elif len(found[0][0]) != 3 or not found[0][1].startswith("update 4 was stopped: the loss is nan. The weight"):
        yield f"stopped after {len(found[0][0])} updates: {found[0][1]}"


if __name__ == "__main__":
    with np.errstate(all="ignore"):  # the interpreter computes what a mask then hides
        wrong = list({"differences": differences, "together": together, "ahead": ahead}[sys.argv[1]]())
    print(*wrong, f"{len(wrong)} wrong", sep="\n")
