"""`check.kernel` with kernels that are right, and with every kind of kernel that is not."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import numpy as np
import pytest
import torch

from tapeless import TapelessError
from tapeless.check import kernel, torch_kernel
from tapeless.check.own import kernel as whole_model
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tapeless.ops.contract import NONE

SMALL = {"layers": 2, "channels": 16, "heads": 2, "vocab": 32, "context": 8, "time": 8}
LAYERNORM = OPS["layernorm"]


@pytest.fixture(autouse=True)
def short_race(monkeypatch):
    """Speed is reported, not judged: one run a turn is enough here."""
    monkeypatch.setattr(whole_model, "TURN_SECONDS", 0.0)


def check(name="layernorm", **given):
    return kernel(name, **{**SMALL, "steps": 0, "backend": "reference", **given})


def forward(y, mean, rstd, x, weight, bias, eps):
    mean[...] = x.mean(axis=1)
    rstd[...] = 1 / np.sqrt(x.var(axis=1) + eps)
    y[...] = (x - mean[:, None]) * rstd[:, None] * weight + bias


def backward(dx, dweight, dbias, dy, x, weight, mean, rstd):
    """Overwrites only: it does not know about `add`."""
    xhat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dweight[...] = (dy * xhat).sum(axis=0)
    dbias[...] = dy.sum(axis=0)
    dx[...] = rstd[:, None] * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))


def then(change):
    """The right backward, and then something that should not be done; arguments by name."""

    def wrong(dx, dweight, dbias, dy, x, weight, mean, rstd):
        backward(dx, dweight, dbias, dy, x, weight, mean, rstd)
        change(locals())

    return wrong


# It holds


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_right_kernel_holds(backend):
    report = check(forward=forward, backward=backward, backend=backend, steps=100)
    assert report.ok, report
    assert report.first_wrong is None
    assert not report.faults
    assert len({each.number for each in report.differences}) == 9 + 5  # 4 norms are computed again in the backward
    assert {each.argument for each in report.differences} == {"y", "mean", "rstd", "dx", "dweight", "dbias"}
    assert [speed.call.title for speed in report.speeds] == ["layernorm.forward", "layernorm.backward"]
    assert all(speed.yours > 0 and speed.ours > 0 for speed in report.speeds)
    assert 0 <= report.drift <= report.drift_allowed == (1e-4 if backend == "cpu" else 1e-9)
    for piece in ("layernorm: holds", "42 results of 14 calls", "× as fast", "over 100 training steps"):
        assert piece in str(report)
    report.raise_if_wrong()


def test_one_direction_alone():
    report = check(backward=backward)
    assert report.ok
    assert {each.call.direction for each in report.differences} == {"backward"}


def test_a_kernel_that_can_add_is_asked_to():
    asked = []

    def adds(*arguments, add=NONE):
        asked.append(add)
        LAYERNORM.backward(*arguments, add=add)

    assert check(backward=adds).ok
    assert {"dx", "dweight", "dbias"} in asked

    def ignores(*arguments, add=NONE):
        LAYERNORM.backward(*arguments)

    report = check(backward=ignores)
    assert report.first_wrong is not None
    assert not report.faults


def test_torch_kernels_work_on_the_same_memory():
    @torch_kernel
    def gelu(y, x):
        y.copy_(torch.nn.functional.gelu(x, approximate="tanh"))

    @torch_kernel
    def gelu_backward(dx, dy, x):
        leaf = x.clone().requires_grad_()
        dx.copy_(torch.autograd.grad(torch.nn.functional.gelu(leaf, approximate="tanh"), leaf, dy)[0])

    for backend in ("reference", "cpu"):
        assert check("gelu", forward=gelu, backward=gelu_backward, backend=backend, steps=5).ok
    report = check("gelu", forward=torch_kernel(lambda y, x: y.copy_(torch.nn.functional.gelu(x))))
    assert report.first_wrong is not None  # the exact GELU is not the tanh one


NOT_IN_TRAINING = ("cached_attention", "momentum", "positions_at", "proximity", "remember", "sgd", "unembed")


@pytest.mark.parametrize("name", sorted(set(OPS) - set(NOT_IN_TRAINING)))
def test_the_reference_itself_holds_for_every_op_of_a_training_step(name):
    op = OPS[name]
    given = {"forward": op.forward, "backward": getattr(op, "backward", None)}
    if op.SPEC.fused:
        with pytest.raises(
            TapelessError, match=f"has no {name}.forward: choose another preset, .* leave that direction"
        ):
            check(name, **given)
        del given["forward"]
    asked: dict[str, dict[str, Any]] = {
        "dropout": {"dropout": 0.2},
        "count_draws": {"dropout": 0.2},
        "adapt": {"lora": 2},
        "muon": {"optimizer": "muon"},
    }
    fields = asked.get(name, {})
    report = check(name, **given, backend="cpu", steps=3, **fields)
    assert report.ok, report
    assert report.differences


@pytest.mark.parametrize("name", NOT_IN_TRAINING)
def test_an_op_that_no_training_step_has(name):
    with pytest.raises(TapelessError, match=f"the training step of every preset has no {name}.forward: choose another"):
        check(name, forward=OPS[name].forward)


def test_scratch_need_not_be_used():
    def with_its_own(loss, dx, dweight, logits, *reads, add=NONE):
        OPS["classifier"].backward(loss, dx, dweight, np.empty_like(logits), *reads, add=add)

    report = check("classifier", backward=with_its_own)
    assert report.ok, report


def test_what_a_call_reads_is_what_the_reference_computed():
    """Even after a forward that is wrong: each call is judged by itself."""
    agree = []

    def records(dx, dweight, dbias, dy, x, weight, mean, rstd):
        agree.append(np.allclose(mean, x.mean(axis=1)))
        backward(dx, dweight, dbias, dy, x, weight, mean, rstd)

    def means_off(y, mean, rstd, *reads):
        forward(y, mean, rstd, *reads)
        mean += 1

    report = check(forward=means_off, backward=records)
    assert {each.argument for each in report.differences if not each.ok} == {"mean"}
    assert all(agree)
    assert agree


def test_an_optimizer_is_a_kernel_too():
    def late(weights, m, v, master, step, *rest):
        step += 1
        OPS["adamw"].forward(weights, m, v, master, step, *rest)
        step -= 1

    report = check("adamw", forward=late)
    assert report.first_wrong is not None
    assert report.first_wrong.argument == "weights"


def test_an_optimizer_that_clears_the_gradients_changes_its_input():
    def clears(weights, m, v, master, step, moved, norms, gradients, *rest):
        OPS["adamw"].forward(weights, m, v, master, step, moved, norms, gradients, *rest)
        gradients[...] = 0

    assert "changes its input gradients" in check("adamw", forward=clears).faults[0]


def test_a_model_that_amplifies_every_rounding_does_not_speak_against_a_kernel():
    report = check(
        forward=forward, backward=backward, backend="cpu", preset="cllm", steps=100, channels=64, time=32, context=32
    )
    assert report.ok, report
    assert check(backward=then(lambda a: a["dx"].__imul__(1.01)), backend="cpu", preset="cllm").first_wrong


# What is wrong is found, and named


def test_the_first_wrong_call_is_named_with_layer_tensor_place_and_values():
    def one_place(arguments):
        arguments["dx"][3, 5] += 0.5

    report = check(backward=then(one_place))
    first = report.first_wrong
    assert (first.call.section, first.call.title, first.argument) == ("head", "layernorm.backward", "dx")
    assert first.call["dx"].name == "dstream"
    assert first.position == (3, 5)
    assert first.found - first.true == pytest.approx(0.5)
    assert "head, call" in str(report)
    assert "dx (dstream)" in str(report)
    assert {each.argument for each in report.differences if not each.ok} == {"dx"}
    with pytest.raises(TapelessError, match="does not hold"):
        report.raise_if_wrong()


def test_a_wrong_call_in_one_layer_does_not_count_against_the_others():
    seen: list[int] = []  # the weights of the norms, by address

    def third(y, mean, rstd, x, weight, bias, eps):
        forward(y, mean, rstd, x, weight, bias, eps)
        if weight.ctypes.data not in seen:
            seen.append(weight.ctypes.data)
        if seen.index(weight.ctypes.data) == 2:
            y *= 1 + 1e-9

    wrong = [each for each in check(forward=third).differences if not each.ok]
    assert {(each.call["y"].name, each.argument) for each in wrong} == {("blocks.1.norm1", "y")}


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        (lambda a: a["dx"].__imul__(1 + 1e-9), "dx"),
        (lambda a: a["dweight"].__imul__(-1), "dweight"),
        (lambda a: a["dbias"].__itruediv__(2), "dbias"),
        (lambda a: a["dx"].fill(np.nan), "dx"),
    ],
)
def test_wrong_numbers(change, tensor):
    report = check(backward=then(change))
    assert not report.ok
    assert not report.faults
    assert {each.argument for each in report.differences if not each.ok} == {tensor}


def test_float32_in_place_of_float64_is_not_enough_for_the_reference():
    def narrow(dx, dweight, dbias, *reads):
        backward(dx, dweight, dbias, *(each.astype(np.float32) for each in reads))

    assert not check(backward=narrow).ok


# What it does to memory


def strided_past_the_end(array, distance):
    return np.lib.stride_tricks.as_strided(array, (array.size + distance,), (array.itemsize,))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a["dy"].__imul__(1 + 1e-9), r"changes its input dy \(dnorm\)"),
        (lambda a: a["weight"].__iadd__(1e-9), r"changes its input weight \(norm.weight\)"),
        (lambda a: a["rstd"].__setitem__(-1, 0), r"changes its input rstd"),
        (lambda a: strided_past_the_end(a["dbias"], 1).__setitem__(-1, 9.0), "writes outside its outputs"),
        (lambda a: strided_past_the_end(a["x"], 5000).__setitem__(-1, 9.0), "writes outside its outputs"),
        (lambda a: strided_past_the_end(a["dx"], 40).__setitem__(-1, 9.0), "writes outside|changes its input"),
    ],
)
def test_what_it_must_not_touch(change, sentence):
    report = check(backward=then(change), steps=10)
    assert not report.ok
    assert len(report.faults) == 1
    with pytest.raises(TapelessError, match=f"layernorm.backward in head: it ({sentence})"):
        report.raise_if_wrong()
    assert isnan(report.drift)
    assert not report.differences  # it is not run again


def adds_to_dweight(dx, dweight, dbias, *reads):
    before = dweight.copy()
    backward(dx, dweight, dbias, *reads)
    dweight += before


def leaves_the_last(y, mean, rstd, x, weight, bias, eps):
    room = np.empty_like(y)
    forward(room, mean, rstd, x, weight, bias, eps)
    y[:, :-1] = room[:, :-1]


def returns(y, mean, rstd, x, weight, bias, eps):
    mean = x.mean(axis=1)
    return (x - mean[:, None]) * weight + bias


@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        ({"backward": lambda *arguments: None}, [f"it does not write {each}" for each in ("dx", "dweight", "dbias")]),
        ({"forward": leaves_the_last}, ["it does not write y at 16 of 256 places, first (0, 15)"]),
        ({"backward": adds_to_dweight}, ["dweight depends on what it held before, at 16 of 16 places"]),
        ({"forward": returns}, ["not write y", "not write mean", "not write rstd", "it returns a ndarray"]),
    ],
)
def test_outputs_that_are_not_written(given, sentences):
    report = check(**given)
    assert not report.ok
    assert len(report.faults) == len(sentences)
    for fault, sentence in zip(report.faults, sentences, strict=True):
        assert sentence in fault


@pytest.mark.parametrize("size", [1e-16, 1.0])
def test_results_that_differ_from_run_to_run(size):
    rng = np.random.default_rng(0)

    def noisy(dx, dweight, dbias, *reads):
        backward(dx, dweight, dbias, *reads)
        dbias *= 1 + size * rng.normal(size=dbias.shape)

    report = check(backward=noisy)
    assert not report.ok
    assert "dbias differs between 3 runs on the same inputs" in report.faults[0]


# What it does to training


def test_a_kernel_that_is_wrong_only_in_training_is_caught_by_the_loss():
    """Norms start at 1 there; the walk has them elsewhere."""

    def biased(dx, dweight, dbias, dy, x, weight, mean, rstd):
        backward(dx, dweight, dbias, dy, x, weight, mean, rstd)
        if abs(weight.mean() - 1) < 0.1:
            dx *= 1.001

    def breaks(dx, dweight, dbias, dy, x, weight, mean, rstd):
        backward(dx, dweight, dbias, dy, x, weight, mean, rstd)
        if abs(weight.mean() - 1) < 0.1:
            dx[...] = np.nan

    for wrong in (biased, breaks):
        assert check(backward=wrong).ok
        report = check(backward=wrong, steps=30)
        assert not report.ok
        assert report.first_wrong is None
        assert not report.faults
        assert report.drift == inf if wrong is breaks else 1e-7 < report.drift < 1
        assert ("does not stay finite" if wrong is breaks else "over 30 training steps") in str(report)


# What it is asked


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "layernrom", "forward": forward}, "unknown op 'layernrom': did you mean 'layernorm'"),
        ({}, "nothing to check: give forward=…, backward=… or both"),
        ({"forward": 3}, "forward must be a function, not 3"),
        ({"name": "adamw", "backward": forward}, "adamw has no backward"),
        ({"forward": forward, "preset": "gpt3"}, "unknown preset 'gpt3'"),
        ({"forward": forward, "backend": "tpu"}, "unknown backend 'tpu'"),
        ({"forward": forward, "steps": -1}, "steps must be a whole number of at least 0, not -1"),
        ({"forward": forward, "repeats": 1}, "repeats must be a whole number of at least 2, not 1"),
        ({"forward": forward, "wings": 2}, "unknown field 'wings'"),
        ({"name": "relu", "forward": forward, "preset": "cllm"}, "the training step of cllm has no relu.forward"),
        ({"forward": lambda y: None}, "your layernorm.forward raised TypeError in blocks.0: .* given y, mean, rstd,"),
    ],
)
def test_bad_arguments_get_one_sentence(given, sentence):
    with pytest.raises(TapelessError, match=sentence):
        check(**given)


def test_the_preset_is_one_that_uses_the_op_and_fields_can_change_it():
    relu = OPS["relu"]
    found = [
        check("relu", forward=relu.forward, backward=relu.backward, **more) for more in ({}, {"activation": "relu"})
    ]
    norms = [report.differences[0].call["y"].name for report in found]
    assert all(report.ok for report in found)
    assert norms == ["blocks.0.mlp.act", "blocks.0.mlp.act"]
    assert len(found[0].differences) > 1
    assert PRESETS["ops-102k"].architecture.activation == "relu"
