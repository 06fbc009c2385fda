"""A model call by call: is the list sound, does every forward call yield what the plain model says, and is every
gradient, when it is first used, the true one? The first call that goes wrong is named.

A wrong gradient spoils everything behind it, so a list of wrong weights says little. Walking backward from the loss,
each backward call is judged by what it *reads*: its dy must be the derivative of the loss by its forward partner's
output, which the complex step gives by moving that output in the middle of the forward pass. The first dy that is wrong
was made by the call that wrote it last, whose own dy was right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tapeless.check.complex_step import STEP
from tapeless.check.configurations import CONFIGURATIONS, Configuration
from tapeless.check.finding import EXACT, Finding, difference
from tapeless.errors import ProgramError
from tapeless.model import Model
from tapeless.models.config import CHOICES
from tapeless.ops.contract import Array
from tapeless.program.call import Call, gradient_name
from tests.check import plain_model as plain
from tests.check.directions import check_directions
from tests.check.steps import small_model

NAMED = re.compile(r"(\w+)\.(?:forward|backward) at (\w+)\.py:\d+")
# Between them every op, block and branch that a training step can have, and shapes that divide nothing.
WALKED = tuple(
    configuration
    for configuration in CONFIGURATIONS
    if configuration.name
    in (
        "gpt2-4x256",
        "gpt2-4x256 recomputed",
        "gpt2-4x256 read at the end",
        "gpt2-4x256 dropout, recomputed",
        "ops-102k",
        "ops-102k dropout",
        "cllm",
        "sunfish",
        "qwen3-0.6b",
        "qwen3-0.6b untied, documents, recomputed",
        "llama-4x256 documents and a window",
        "llama-4x256 LoRA",
        "gpt2-4x256 LoRA, recomputed",
        "qwen3-0.6b LoRA on q, v and down, norms trained",
    )
)


def place_of(call: Call) -> str:
    """`layernorm in blocks`: the op, and the file whose line made the call."""
    return f"{call.op} in {call.source.partition('.')[0]}"


def check_program(configuration: Configuration) -> Iterator[Finding]:
    """What can be seen without computing anything."""
    yield from _refused(lambda: configuration.model("float64"))


def check_updates() -> Iterator[Finding]:
    """The same, with the update of each optimizer."""
    for name in CHOICES["optimizer"]:
        yield from _refused(partial(small_model, name, dropout=0.1))


def _refused(make: Callable[[], Model]) -> Iterator[Finding]:
    try:
        make()
    except ProgramError as error:
        named = NAMED.search(str(error))
        yield Finding(f"{named[1]} in {named[2]}" if named else "program", "verifier", str(error))


def check_walk(configuration: Configuration) -> Iterator[Finding]:
    """Stops at the first kind of fault: what stands behind it is its consequence."""
    model, probe = configuration.model("float64"), configuration.model("complex128")
    for checker in (_forward, _backward, _weights):
        found = next(checker(configuration, model, probe), None)
        if found:
            yield found
            return


def _prepare(configuration: Configuration, *models: Model) -> tuple[Array, Array]:
    rng = np.random.default_rng(configuration.seed)
    inputs, targets = configuration.batch_of(rng, models[0])
    configuration.scramble(rng, models[0])
    for model in models[1:]:
        for name, weight in models[0].params.items():
            model.params[name][...] = weight
    for model in models:
        model.draws = 0
    return inputs, targets


def _forward(configuration: Configuration, model: Model, probe: Model) -> Iterator[Finding]:
    inputs, targets = _prepare(configuration, model)
    # What is frozen may be narrower, and all of it is computed with in float64.
    weights = plain.adapted(model.preset, {name: each.astype(np.float64) for name, each in model.weights().items()})
    rate, whole = model.preset.dropout, plain.forward(model.config, weights, inputs)
    dropping = plain.Dropping(rate, configuration.seed, draws=model.draws + 1) if rate else None
    values = plain.forward(model.config, weights, inputs, dropping) if rate else whole
    expected, evaluated = (
        np.array([plain.loss(model.config, weights, each, targets, model.class_weights)]) for each in (values, whole)
    )
    last_writer = {call.writes[0].view.buffer: call for call in model.program.phase("forward")}
    for call, arrays in model.trace(inputs, targets):
        written = call.writes[0].view.buffer
        if call.phase == "forward" and last_writer[written] is call and written.name in values:
            true = values[written.name][:, -written.shape[1] :]  # all positions, or the last
            found = difference(model.read(written.name).reshape(true.shape), true)
            if found:
                yield _finding(configuration, "plain model", call, f"{written.name} {found}")
        if "targets" in arrays:
            yield from _fed(configuration, arrays, targets)
            found = difference(arrays["loss"], expected)
            if found:
                yield _finding(configuration, "plain model", call, f"the loss {found}")
    for what, single, true in (
        ("loss", np.array([model.loss(inputs, targets)]), evaluated),
        ("scores", model.logits(inputs), plain.scores(model.config, weights, whole)),
    ):
        found = difference(single, true)
        if found:
            yield Finding("model", "plain model", f"{configuration.name}: the {what} of an evaluation {found}")


def _fed(configuration: Configuration, arrays: dict[str, Array], targets: Array) -> Iterator[Finding]:
    """What the loss is given: the targets as they came, and how many of them count."""
    weights = configuration.fields.get("class_weights")
    each = [1.0 if weights is None else weights[target] for target in targets.reshape(-1) if target >= 0]
    wanted = {"targets": targets.reshape(-1), "count": np.array([np.sum(each)])}
    for name, true in wanted.items():
        if not np.array_equal(arrays[name], true):
            detail = f"{configuration.name}: the loss is given {name} {arrays[name]}, not {true}"
            yield Finding("feed in model", "plain model", detail)


def _backward(configuration: Configuration, model: Model, probe: Model) -> Iterator[Finding]:
    inputs, targets = _prepare(configuration, model, probe)
    last_writer: dict[str, Call] = {}
    # The gradients as they are when read, each along one random direction; judged afterwards, in order.
    seen: list[tuple[Call, Call, float, Array, float]] = []
    for number, (call, arrays) in enumerate(model.trace(inputs, targets)):
        forward = model.program.partners[number]
        if call.direction == "backward" and forward is not None:
            partner = model.program.calls[forward]
            gradient = arrays["dy"].reshape(partner["y"].shape)
            direction = np.random.default_rng(len(seen)).normal(size=gradient.shape)
            maker = last_writer[call["dy"].buffer.name]
            seen.append((partner, maker, float((gradient * direction).sum()), direction, float(np.abs(gradient).max())))
        last_writer |= {argument.view.buffer.name: call for argument in call.writes}
    probe.feed(inputs, targets)
    for partner, maker, found, direction, largest in seen:
        true = _derivative(probe, partner, direction)
        if not abs(found - true) <= EXACT * max(abs(true), largest * np.sqrt(direction.size)):
            detail = f"the gradient of {partner['y'].name}, along a random direction, is {found!r}, not {true!r}"
            yield _finding(configuration, "complex step", maker, detail)


def _derivative(probe: Model, moved: Call, direction: Array) -> float:
    """Of the loss, which in a training step the first backward yields, when the output of one call is moved right after
    it was computed."""
    probe.draws = 0  # the same random numbers each time
    for call in probe.engine.walk("forward", "recompute", "backward"):
        if any(argument.name == "loss" for argument in call.writes):
            break
        if call.title == moved.title and call["y"] == moved["y"]:
            probe.engine.view(call["y"])[...] += 1j * STEP * direction
    return float(probe.read("loss")[0].imag) / STEP


def _weights(configuration: Configuration, model: Model, probe: Model) -> Iterator[Finding]:
    """Every dy was right; so a weight's gradient is wrong by the call that makes it from there."""
    for error in check_directions(configuration):
        if not error.ok:
            name = gradient_name(error.tensor)
            makers = [c for c in model.program.calls if any(a.view.buffer.name == name for a in c.writes)]
            backward = [call for call in makers if call.direction == "backward"]
            yield _finding(configuration, "complex step", backward[0], f"{name} is off by {error.error:.1e}")


def _finding(configuration: Configuration, checker: str, call: Call, detail: str) -> Finding:
    return Finding(place_of(call), checker, f"{configuration.name}: {call.title} at {call.source}: {detail}")
