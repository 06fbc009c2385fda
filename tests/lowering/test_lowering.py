"""What runs is the program: the same calls, the same gradients; and what is walked is what runs, to the last bit."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.backends.cpu import CPU
from tapeless.lowering import Rules, lower, lowered_for
from tapeless.lowering.gpu import FUSIONS
from tapeless.lowering.relu import RELU_IN_LINEAR
from tapeless.lowering.verify import flattened
from tapeless.model import GRADIENTS, UPDATE
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import preset
from tapeless.program.call import gradient_name
from tests.program.wiring import BASE, CHANGES

RNG = np.random.default_rng(0)
SIZES: dict[str, Any] = {"layers": 2, "channels": 32, "heads": 4, "vocab": 20, "context": 8, "hidden": 48}
ALL = Rules((*FUSIONS, RELU_IN_LINEAR), omits=True)
STEP = ("zero", *GRADIENTS, *UPDATE)


def training(name, **fields):
    return transformer.training(BASE.override(**CHANGES[name] | fields), 2, 3, Optimizer("sgd"))


def modes(program):
    """How each gradient is written to, in order."""
    found: dict[str, list[str]] = {}
    for call in program.calls:
        for argument in call.writes:
            if argument.view.buffer.kind == "gradient":
                found.setdefault(argument.view.buffer.name, []).append(argument.mode)
    return found


@pytest.mark.parametrize("name", ["gpt", "recomputed", "llama", "one answer", "adapted", "signal"])
def test_a_zeroed_gradient_is_written_first_and_zeroing_goes(name):
    program = training(name)
    planned = lower(program)
    assert modes(planned) == modes(program)  # so that batches can be added up
    lowered = lowered_for(planned, STEP)
    assert not lowered.phase("zero")
    assert all(each[0] == "write" for each in modes(lowered).values())
    added = lowered_for(planned, GRADIENTS)
    assert modes(added) == {name: ["add"] * len(each) for name, each in modes(lowered).items()}
    assert lowered_for(planned, ("zero",)).calls == program.phase("zero")


def test_a_second_call_adds_to_a_gradient():
    tied = modes(lowered_for(lower(training("gpt")), STEP))
    assert tied[gradient_name("tokens.weight")] == ["write", "add"]  # the classifier, then the embedding


def test_columns_that_nobody_has_written_are_written():
    """The last block of a model that answers once: queries of one position, keys and values of all."""
    found = modes(lowered_for(lower(training("one answer")), STEP))
    assert ["write", "write"] in found.values()


@pytest.mark.parametrize("name", CHANGES)
def test_a_lean_list_is_planned_as_it_runs(name):
    lowered = lower(training(name, lean=True), ALL)
    assert not lowered.phase("zero")
    assert lowered.lent_gradients
    assert lowered_for(lowered, STEP).calls == lowered.calls


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_fused_is_the_same_calls(name):
    program = training(name)
    lowered = lower(program, ALL)
    assert flattened(lowered).calls == program.calls
    assert [part for call in lowered.calls for part in call.parts] == list(program.calls)
    assert any(len(call.parts) > 1 for call in lowered.calls)
    assert lowered.flops == program.flops


def test_an_input_that_is_not_given_is_left_out_and_only_that():
    program = training("llama")
    planned = lower(program, ALL)
    without = lowered_for(planned, STEP, frozenset({"starts"}))
    attention = [part for call in without.calls for part in call.parts if part.op == "attention"]
    assert attention
    assert not any(part.has("starts") for part in attention)
    given = lowered_for(planned, STEP)
    assert all(part.has("starts") for call in given.calls for part in call.parts if part.op == "attention")


def test_a_group_that_is_cut_is_run_call_by_call():
    planned = lower(training("recomputed"), ALL)
    cut = {span for span, call in planned.groups.items() if {part.phase for part in call.parts} >= {"recompute"}}
    assert cut
    left = lowered_for(planned, ("zero", "forward", "backward", "clip", "update"))
    assert set(left.groups) == set(planned.groups) - cut


WALKED = [
    ("ops-102k", {}),
    ("gpt2-4x256", {"dropout": 0.1}),
    ("gpt2-4x256", {"activation": "relu", "recompute": True}),
    ("gpt2-4x256", {"lean": True}),
    ("llama-4x256", {"kv_heads": 2}),
]
PLACES = [("reference", "float64"), ("reference", "bfloat16"), *(("cpu", each) for each in CPU.traits.precisions)]


@pytest.mark.parametrize(("backend", "precision"), PLACES)
@pytest.mark.parametrize(("name", "fields"), WALKED, ids=str)
@pytest.mark.usefixtures("own_products")
def test_a_walked_step_has_the_bits_of_one_that_runs(backend, precision, name, fields):
    run, walked, traced = (
        Model(name, batch=4, time=8, backend=backend, precision=precision, seed=1, **SIZES | fields) for _ in range(3)
    )
    last = (4,) if run.config.readout == "last" else (4, 8)
    for step in range(3):
        inputs, targets = RNG.integers(0, 20, (4, 8)), RNG.integers(0, 20, last)
        made = run.step(inputs, targets, lr=1e-2, clip=1.0)
        walk, other = walked.walk_step(inputs, targets, lr=1e-2, clip=1.0)
        calls = list(walk)
        assert calls == list(run.program.calls)
        assert other.loss == made.loss, step
        list(traced.trace(inputs, targets, lr=1e-2))
        assert traced.read("loss")[0] == made.loss if step == 0 else True
    for each in (*run.params, *run.state):
        assert run.read(each).tobytes() == walked.read(each).tobytes(), each


@pytest.mark.usefixtures("own_products")
def test_it_does_not_matter_which_steps_are_recorded():
    """By default that follows from the clock."""
    batches = [(RNG.integers(0, 20, (4, 8)), RNG.integers(0, 20, 4)) for _ in range(6)]
    found = []
    for walked in ((), (0, 3), range(6)):
        model = Model("ops-102k", batch=4, time=8, backend="cpu", seed=1)
        for step, batch in enumerate(batches):
            if step in walked:
                list(model.walk_step(*batch, lr=1e-2, clip=1.0)[0])
            else:
                model.step(*batch, lr=1e-2, clip=1.0)
        found.append({name: model.read(name).tobytes() for name in (*model.params, *model.state)})
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("own_products")
def test_who_looks_at_a_fused_call_sees_each_of_its_parts():
    """What a ReLU leaves is in no memory while a step runs; a walk computes it."""
    model = Model("ops-102k", batch=4, time=8, backend="cpu", seed=1)
    assert any(call.op == RELU_IN_LINEAR.name for call in model.plan.program.calls)
    inputs, targets = RNG.integers(0, 20, (4, 8)), RNG.integers(0, 20, 4)
    seen = 0
    for call, arrays in model.trace(inputs, targets):
        if call.title == "relu.forward":
            assert np.array_equal(arrays["y"], np.maximum(arrays["x"], 0))
            seen += 1
        if call.title == "linear.forward" and call["x"].name.endswith("act"):
            product = arrays["x"].astype(np.float64) @ arrays["weight"] + arrays["bias"]
            assert np.allclose(arrays["y"], product, rtol=1e-4, atol=1e-5)
        if call.title == "relu.backward":
            assert np.array_equal(arrays["dx"], np.where(arrays["x"] > 0, arrays["dy"], 0))
            assert arrays["dy"].any()
    assert seen == 4  # two blocks, forward and once more


def test_zeroing_is_seen_though_nothing_is_zeroed():
    model = Model("gpt2-4x256", batch=2, time=8, backend="cpu", **SIZES)
    tokens = RNG.integers(0, 20, (2, 8))
    model.forward_backward(tokens, tokens)
    call, arrays = next(iter(model.trace(tokens, tokens)))
    assert call.op == "zero"
    assert not arrays["y"].any()


def test_a_lowered_list_is_a_program():
    made = preset("gpt2-4x256").override(layers=1)
    program = transformer.training(made, 2, 8, Optimizer("adamw"))
    lowered = lowered_for(lower(program, ALL))
    assert lowered.original is program
    assert lowered.weights == program.weights
    fused = next(call for call in lowered.calls if len(call.parts) > 1)
    assert fused.title == " + ".join(part.title for part in fused.parts)
    for index, partner in enumerate(lowered.partners):
        first, last = lowered.spans[index]
        known = any(program.partners[number] is not None for number in range(first, last + 1))
        assert (partner is not None) == known
