"""ReLU within the products around it: what is computed is what the calls compute singly, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tapeless import Model
from tapeless.backends.cpu import CPU
from tapeless.backends.folded import folds
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops.linear import cpu as linear

FORWARD, BACKWARD = ["relu.forward", "linear.forward"], ["relu.forward", "linear.backward", "relu.backward"]
pytestmark = pytest.mark.usefixtures("own_products")

RNG = np.random.default_rng(0)


def a_model(**fields):
    return Model("ops-102k", batch=5, time=8, backend="cpu", seed=0, **fields)


def titles(calls):
    return [[call.title for call in fold.calls] for fold in folds(calls)]


def batch():
    return RNG.integers(0, 20, (5, 8)), RNG.integers(0, 20, 5)


@pytest.mark.parametrize("fields", [{}, {"placement": "pre"}, {"lean": True}, {"frozen": ["blocks.0.*"]}], ids=str)
def test_the_same_bits_as_call_by_call(fields):
    together, singly = a_model(**fields), a_model(**fields)
    singly.engine.run = lambda *phases: [None for _ in singly.engine.walk(*phases)]
    assert len(together.plan.together) >= 3
    for _ in range(3):
        given = batch()
        losses = [model.step(*given, lr=1e-2, clip=1.0).loss for model in (together, singly)]
        assert losses[0] == losses[1]
    for accumulate in (False,) if "lean" in fields else (False, True, True):
        given = batch()
        losses = [model.forward_backward(*given, accumulate=accumulate) for model in (together, singly)]
        assert losses[0] == losses[1]
    for name, gradient in together.grads.items():
        assert np.array_equal(gradient, singly.grads[name]), name
    for name, weight in together.params.items():
        assert np.array_equal(weight, singly.params[name]), name


def test_no_relu_is_left():
    model = a_model()
    model.step(*batch(), lr=1e-2)
    assert titles(model.engine.program.calls) == [FORWARD, FORWARD, BACKWARD, BACKWARD]
    (captured,) = model.engine._captured.values()
    listed = [native for each in captured[-1]._natives for native in getattr(each, "runs", [each])]
    singly = [native for _, bound in model.engine.bound for each in bound for native in getattr(each, "runs", [each])]
    assert len(listed) == len(singly) - 6


def test_a_frozen_linear_has_no_gradient_to_make_a_relu_for():
    assert titles(a_model(frozen=["blocks.0.*"]).engine.program.calls)[-1] == BACKWARD[1:]


def test_what_is_read_afterwards_is_written():
    """A call behind a fold that reads what would lie between, as a model of somebody's own may."""
    calls = list(a_model().engine.program.calls)
    (first, *_), residual = folds(calls), next(call for call in calls if call.op == "residual")
    act = calls[first.first]["y"]
    at = next(n for n, call in enumerate(calls[first.last :], first.last) if call.op == "residual")
    reads = tuple(replace(each, view=act) if each.name == "branch" else each for each in residual.arguments)
    calls.insert(at, replace(residual, arguments=reads))
    assert titles(calls) == [FORWARD, BACKWARD, BACKWARD]
    # Once it is written again, whoever reads it reads something else.
    calls.insert(at, calls[first.first])
    assert titles(calls)[0] == FORWARD


def test_neither_is_a_gradient_that_somebody_reads():
    calls = list(a_model().engine.program.calls)
    at = next(n for n, call in enumerate(calls) if call.title == "relu.backward")
    residual = next(call for call in calls if call.op == "residual")
    reads = tuple(replace(each, view=calls[at]["dy"]) if each.name == "branch" else each for each in residual.arguments)
    calls.insert(at + 1, replace(residual, arguments=reads))
    assert titles(calls) == [FORWARD, FORWARD, BACKWARD[:2], BACKWARD]


def test_what_others_may_look_at_is_written():
    calls = list(a_model().engine.program.calls)
    (first, *_) = folds(calls)
    act = calls[first.first]["y"]
    kept = replace(act, buffer=replace(act.buffer, kind="output"))
    for number in range(first.first, first.last + 1):
        moved = tuple(replace(each, view=kept) if each.view == act else each for each in calls[number].arguments)
        calls[number] = replace(calls[number], arguments=moved)
    assert titles(calls) == [FORWARD, BACKWARD, BACKWARD]


def test_a_linear_of_something_else_is_no_fold():
    calls = list(a_model().engine.program.calls)
    (first, *_) = folds(calls)
    below, up = calls[first.last], calls[first.first]["x"]
    other = tuple(replace(each, view=up) if each.name == "x" else each for each in below.arguments)
    calls[first.last] = replace(below, arguments=other)
    assert titles(calls) == [FORWARD, BACKWARD, BACKWARD]


def test_a_gradient_that_is_added_to_is_no_fold():
    calls = list(a_model().engine.program.calls)
    number = next(n for n, call in enumerate(calls) if call.title == "relu.backward") - 1
    below = calls[number]
    adding = tuple(replace(each, mode="add") if each.name == "dx" else each for each in below.arguments)
    calls[number] = replace(below, arguments=adding)
    assert titles(calls) == [FORWARD, FORWARD, BACKWARD[:2], BACKWARD]


def test_one_row_is_no_product():
    assert titles(Model("ops-102k", batch=1, time=8, backend="cpu").engine.program.calls) == [FORWARD, BACKWARD]


def test_elsewhere_calls_are_bound_singly():
    if "bfloat16" in CPU.precisions:
        assert not a_model(precision="bfloat16").plan.together
    assert not Model("ops-102k", batch=5, time=8, backend="reference").plan.together
    if cpu_kernels.mkl() is not None:
        cpu_kernels.set_gemm_library("mkl")
        assert not a_model().plan.together


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
    if "bfloat16" in CPU.precisions:
        y, x, weight, bias = (each.astype(bfloat16) for each in (y, x, weight, bias))
        with pytest.raises(ValueError, match="no ReLU"):
            linear.forward(y, x, weight, bias, relu=True)


def test_nan_passes():
    model = a_model()
    model.params["blocks.0.mlp.up.bias"][3] = np.nan
    assert np.isnan(model.step(*batch(), lr=1e-2).loss)
