"""ReLU in the GEMMs around it: what is computed is what the calls compute one after the other, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tapeless import Model
from tapeless.backends.cpu import CPU
from tapeless.backends.engine import Engine
from tapeless.kernels import cpu as cpu_kernels
from tapeless.lowering import Rules, lower
from tapeless.lowering.relu import RELU_IN_LINEAR
from tapeless.ops.linear import cpu as linear
from tapeless.program.arena import make_plan
from tapeless.program.call import PREPARED, gradient_name

FORWARD, BACKWARD = ["relu.forward", "linear.forward"], ["relu.forward", "linear.backward", "relu.backward"]
pytestmark = pytest.mark.usefixtures("own_products")

RNG = np.random.default_rng(0)


def a_model(**fields):
    return Model("ops-102k", batch=5, time=8, backend="cpu", seed=0, **fields)


def singly(model):
    """It runs every call by itself, as it was written."""
    alone = Engine(make_plan(model.program, model.precision, CPU.scratch), CPU)
    for name, each in alone.plan.placements.items():
        if each.buffer.kind in PREPARED and not each.buffer.members:
            alone.write(name, model.engine.read(name))
    return alone


def titles(program):
    calls = lower(program, Rules((RELU_IN_LINEAR,)), verified=False).calls
    return [[part.title for part in call.parts] for call in calls if len(call.parts) > 1]


def fused(model):
    return [call for call in model.plan.program.calls if len(call.parts) > 1]


def first_fold(program):
    lowered = lower(program, Rules((RELU_IN_LINEAR,)), verified=False)
    return next(iter(lowered.groups))


def changed(program, calls):
    return replace(program, calls=tuple(calls), partners=())


def batch():
    return RNG.integers(0, 20, (5, 8)), RNG.integers(0, 20, 5)


@pytest.mark.parametrize("fields", [{}, {"placement": "pre"}, {"lean": True}, {"frozen": ["blocks.0.*"]}], ids=str)
def test_the_same_bits_as_call_by_call(fields):
    model = a_model(**fields)
    assert len(fused(model)) >= 3
    alone = singly(model)
    for lr in (1e-2, 2e-2, 1e-2):
        given = batch()
        loss = model.step(*given, lr=lr, clip=1.0).loss
        for name in ("tokens", "targets", "count", "lr", "limit"):
            alone.write(name, model.engine.read(name))
        alone.run()
        assert alone.read("loss")[0] == loss
    for name in (*model.params, *map(gradient_name, model.grads)):
        assert np.array_equal(model.engine.read(name), alone.read(name)), name


def test_no_relu_is_left():
    model = a_model()
    assert titles(model.program) == [FORWARD, FORWARD, BACKWARD, BACKWARD]
    model.step(*batch(), lr=1e-2)
    (captured,) = model.engine._captured.values()
    listed = [native for each in captured[-1]._natives for native in getattr(each, "runs", [each])]
    alone = [native for _, bound in model.engine.bound for each in bound for native in getattr(each, "runs", [each])]
    assert len(listed) == len(alone) - 7  # and nothing is zeroed


def test_a_frozen_linear_has_no_gradient_to_make_a_relu_for():
    assert titles(a_model(frozen=["blocks.0.*"]).program)[-1] == BACKWARD[1:]


def test_what_is_read_afterwards_is_written():
    """A call behind a fold that reads what would lie between, as a model of somebody's own may."""
    program = a_model().program
    calls = list(program.calls)
    first, residual = first_fold(program), next(call for call in calls if call.op == "residual")
    act = calls[first[0]]["y"]
    at = next(n for n, call in enumerate(calls[first[1] :], first[1]) if call.op == "residual")
    reads = tuple(replace(each, view=act) if each.name == "branch" else each for each in residual.arguments)
    calls.insert(at, replace(residual, arguments=reads))
    assert titles(changed(program, calls)) == [FORWARD, BACKWARD, BACKWARD]
    # Once it is written again, whoever reads it reads something else.
    calls.insert(at, calls[first[0]])
    assert titles(changed(program, calls))[0] == FORWARD


def test_neither_is_a_gradient_that_somebody_reads():
    program = a_model().program
    calls = list(program.calls)
    at = next(n for n, call in enumerate(calls) if call.title == "relu.backward")
    residual = next(call for call in calls if call.op == "residual")
    reads = tuple(replace(each, view=calls[at]["dy"]) if each.name == "branch" else each for each in residual.arguments)
    calls.insert(at + 1, replace(residual, arguments=reads))
    assert titles(changed(program, calls)) == [FORWARD, FORWARD, BACKWARD[:2], BACKWARD]


def test_what_others_may_look_at_is_written():
    program = a_model().program
    calls = list(program.calls)
    first = first_fold(program)
    act = calls[first[0]]["y"]
    kept = replace(act, buffer=replace(act.buffer, kind="output"))
    for number in range(first[0], first[1] + 1):
        moved = tuple(replace(each, view=kept) if each.view == act else each for each in calls[number].arguments)
        calls[number] = replace(calls[number], arguments=moved)
    assert titles(changed(program, calls)) == [FORWARD, BACKWARD, BACKWARD]


def test_a_linear_of_something_else_is_no_fold():
    program = a_model().program
    calls = list(program.calls)
    first = first_fold(program)
    below, up = calls[first[1]], calls[first[0]]["x"]
    other = tuple(replace(each, view=up) if each.name == "x" else each for each in below.arguments)
    calls[first[1]] = replace(below, arguments=other)
    assert titles(changed(program, calls)) == [FORWARD, BACKWARD, BACKWARD]


def test_a_gradient_that_is_added_to_is_no_fold():
    program = a_model().program
    calls = list(program.calls)
    number = next(n for n, call in enumerate(calls) if call.title == "relu.backward") - 1
    below = calls[number]
    adding = tuple(replace(each, mode="add") if each.name == "dx" else each for each in below.arguments)
    calls[number] = replace(below, arguments=adding)
    assert titles(changed(program, calls)) == [FORWARD, FORWARD, BACKWARD[:2], BACKWARD]


def test_one_row_is_no_product():
    assert titles(Model("ops-102k", batch=1, time=8, backend="cpu").program) == [FORWARD, BACKWARD]


def test_elsewhere_calls_are_bound_singly():
    if "bfloat16" in CPU.traits.precisions:
        assert not fused(a_model(precision="bfloat16"))
    assert not fused(Model("ops-102k", batch=5, time=8, backend="reference"))
    if cpu_kernels.mkl() is not None:
        cpu_kernels.set_gemm_library("mkl")
        assert not fused(a_model())


def test_a_model_keeps_the_products_and_threads_it_is_made_with():
    """Also where a list runs for the first time later on."""
    given, before = batch(), cpu_kernels.threads()
    alone = a_model().loss(*given)
    try:
        several = min(2, cpu_kernels.cores())
        for threads, later in ((1, several), (several, 1)):
            cpu_kernels.set_threads(threads)
            model = a_model()
            cpu_kernels.set_threads(later)
            if cpu_kernels.mkl() is not None:
                cpu_kernels.set_gemm_library("mkl")
            assert model.loss(*given) == alone
            assert model.step(*given, lr=0.0).loss == alone
            assert model.forward_backward(*given) == alone
            cpu_kernels.set_gemm_library("own")
    finally:
        cpu_kernels.set_threads(before)


def test_a_product_that_knows_of_no_relu_says_so():
    y, x, weight, bias = (np.zeros(size, np.float32) for size in ((4, 8), (4, 6), (6, 8), 8))
    with pytest.raises(ValueError, match="no ReLU"):
        linear.forward(y[:1], x[:1], weight, bias, scratch=[np.zeros((1, 8), np.float32)], relu=True)
    if cpu_kernels.mkl() is not None:
        cpu_kernels.set_gemm_library("mkl")
        with pytest.raises(ValueError, match="no ReLU"):
            linear.forward(y, x, weight, bias, relu=True)
    if "bfloat16" in CPU.traits.precisions:
        y, x, weight, bias = (each.astype(bfloat16) for each in (y, x, weight, bias))
        with pytest.raises(ValueError, match="no ReLU"):
            linear.forward(y, x, weight, bias, relu=True)


def test_nan_passes():
    model = a_model()
    model.params["blocks.0.mlp.up.bias"][3] = np.nan
    assert np.isnan(model.step(*batch(), lr=1e-2).loss)
