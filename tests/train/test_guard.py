"""NaN and infinity planted in many places, each to be found where it began; spikes of the loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.check.configurations import CONFIGURATIONS, Configuration, small
from tapeless.errors import NonFiniteError
from tapeless.ops import OPS
from tapeless.train import guard
from tapeless.train.guard import Spikes, _axes, explain_nonfinite, find_nonfinite, norms_by_layer, usual_norms

BACKENDS = ("reference", "cpu")
BATCH, TIME = 2, 4


def made(preset: str = "gpt2-4x256", backend: str = "reference", **fields: Any) -> tuple[Model, Any, Any]:
    configuration = Configuration(preset, preset, small(preset, **fields))
    model = Model(preset, batch=BATCH, time=TIME, backend=backend, **configuration.fields)
    rng = np.random.default_rng(0)
    configuration.scramble(rng, model)
    return (model, *configuration.batch_of(rng, model))


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_a_sound_model_has_no_culprit(configuration):
    model = configuration.model("float64")
    rng = np.random.default_rng(1)
    configuration.scramble(rng, model)
    batch = configuration.batch_of(rng, model)
    assert find_nonfinite(model, *batch) is None
    assert explain_nonfinite(model, *batch) == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_is_damaged_already_is_named(backend, value, monkeypatch):
    monkeypatch.setattr(guard, "PIECE", 7)  # a row at a time
    model, inputs, targets = made(backend=backend)
    model.params["blocks.1.mlp.up.weight"][3, 2] = value
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.kind, culprit.buffer, culprit.index) == ("weight", "blocks.1.mlp.up.weight", (3, 2))
    sentence = explain_nonfinite(model, inputs, targets)
    assert sentence.startswith("The weight blocks.1.mlp.up.weight is not finite before the step begins")
    assert f"blocks.1.mlp.up.weight[3, 2] is {value}" in sentence
    assert "checkpoint" in sentence


def test_a_number_that_frozen_matrices_cannot_hold_is_not_an_updates_fault():
    model, inputs, targets = made(backend="cpu", lora=2, frozen_precision="bfloat16")
    model.write("blocks.1.mlp.up.weight", np.full(model.params["blocks.1.mlp.up.weight"].shape, 3.4028235e38))
    sentence = explain_nonfinite(model, inputs, targets)
    assert sentence.startswith("The frozen weight blocks.1.mlp.up.weight is not finite before the step begins")
    assert "No update moves it" in sentence
    assert "bfloat16 cannot hold (it ends at 3.4e+38)" in sentence


def test_damaged_state_and_tables_are_named():
    model, inputs, targets = made(optimizer="adamw", positions="sinusoidal")
    model.engine.view("v")[5] = np.nan
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.kind, culprit.buffer, culprit.index) == ("state", "v", (5,))
    assert culprit.sentence().startswith("the optimizer's state v is not finite")
    model.engine.view("positions.table")[1, 2] = np.inf
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.kind, culprit.buffer, culprit.index) == ("constant", "positions.table", (1, 2))


def test_a_signal_that_is_not_finite_is_named():
    model, inputs, targets = made("sunfish")
    inputs[1, 2, 0] = np.nan
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.kind, culprit.buffer, culprit.position) == ("input", "features", (1, 2))
    assert "in sequence 1 at position 2. Clean the data" in culprit.sentence()


def calls_with_rows(model: Model) -> list[tuple[int, str]]:
    """Calls, by number in the walk, with an argument they write that has a row per token."""
    calls = model.program.phase("zero", "forward", "recompute", "backward")
    found = []
    for number, call in enumerate(calls):
        for argument in call.writes:
            if argument.view.buffer.kind == "workspace" and argument.view.shape[:2] == (BATCH, TIME):
                found.append((number, argument.name))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("preset", ["gpt2-4x256", "cllm", "sunfish"])
def test_a_kernel_that_gives_infinity_is_found_with_its_token(preset, backend):
    """Every call of the step in turn is made to write one infinity, at a token of its own."""
    model, inputs, targets = made(preset, backend)
    spots = calls_with_rows(model)
    assert len(spots) > 20
    for number, argument in spots:
        position = (number % BATCH, number % TIME)
        call, natives = model.engine.bound[number]
        one = (position[0], slice(position[1], position[1] + 1), *[slice(0, 1)] * (len(call[argument].shape) - 2))
        spoilt = model.engine.view(call[argument])[one]
        natives.append(partial(spoilt.fill, np.inf))
        culprit = find_nonfinite(model, inputs, targets)
        natives.pop()
        assert culprit is not None
        assert (culprit.call, culprit.layer, culprit.source) == (call.title, call.section, call.source)
        assert (culprit.buffer, culprit.position) == (call[argument].name, position)
        assert culprit.token == (None if preset == "sunfish" else inputs[position])
        sentence = culprit.sentence()
        assert f"in sequence {position[0]} at position {position[1]}" in sentence
        assert "the kernel itself is to be suspected" in sentence


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_only_the_last_position_goes_on_it_is_the_last(backend):
    model, inputs, targets = made("ops-102k", backend)
    called = [(call.title, call.section) for call in model.program.calls]
    number = called.index(("relu.forward", "blocks.1"))
    call, natives = model.engine.bound[number]
    natives.append(partial(model.engine.view(call["y"])[1, 0, 3:4].fill, np.nan))
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.call, culprit.buffer, culprit.index) == ("relu.forward", "blocks.1.mlp.act", (1, 0, 3))
    assert (culprit.position, culprit.token) == ((1, TIME - 1), inputs[1, TIME - 1])
    assert np.isnan(culprit.value)


def test_a_kernel_of_ours_replaced_by_a_broken_one(monkeypatch):
    """The same through the op itself, as a mistake in a kernel would look."""
    forward = OPS["attention"].forward

    def broken(y, lse, *given):
        forward(y, lse, *given)
        lse[1, 0, 2] = np.inf

    monkeypatch.setattr(OPS["attention"], "forward", broken)
    model, inputs, targets = made("gpt2-4x256")
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.call, culprit.layer, culprit.buffer) == ("attention.forward", "blocks.0", "blocks.0.attn.lse")
    assert culprit.position == (1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_have_grown_too_large_overflow(backend):
    huge = 1e36 if backend == "cpu" else 1e305
    model, inputs, targets = made(backend=backend)
    model.params["blocks.1.attn.qkv.weight"][...] = huge
    model.params["blocks.1.norm1.weight"][...] = 1e4
    model.params["blocks.1.norm1.bias"][...] = 1e4
    with np.errstate(all="ignore"):
        assert not np.isfinite(model.forward_backward(inputs, targets))
        with pytest.raises(NonFiniteError):
            model.update(0.1)
    culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.call, culprit.layer, culprit.buffer) == ("linear.forward", "blocks.1", "blocks.1.attn.qkv")
    assert dict(culprit.reads)["blocks.1.attn.qkv.weight"] == pytest.approx(huge)
    sentence = culprit.sentence()
    assert f"blocks.1.attn.qkv.weight up to {huge:.3g}" in sentence
    assert f"does not fit into {model.precision.name}" in sentence
    assert "learning rate is too high" in sentence
    assert culprit.source.startswith("affine.py:")
    assert culprit.source in sentence


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_overflow_of_the_logits_is_told_by_its_token(backend):
    """The loss is one number for all; the gradient that the same call writes knows the rows."""
    model, inputs, targets = made(backend=backend, tied=False)
    inputs[...] = 1
    inputs[1, 3] = 2
    model.params["positions.weight"][...] = 0
    model.params["norm.weight"][...] = 1e20
    model.params["head.weight"][...] *= 1e30 if backend == "cpu" else 1e300
    culprit = find_nonfinite(model, inputs, np.abs(targets))
    assert culprit is not None
    assert (culprit.call, culprit.layer, culprit.position) == ("classifier.backward", "head", (0, 0))


def test_a_sum_over_all_tokens_has_no_position():
    backward = OPS["embedding"].backward

    def broken(dweight, dy, tokens, add):
        backward(dweight, dy, tokens, add)
        dweight[2, 1] = np.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPS["embedding"], "backward", broken)
        model, inputs, targets = made("gpt2-4x256")
        culprit = find_nonfinite(model, inputs, targets)
    assert culprit is not None
    assert (culprit.buffer, culprit.index, culprit.position) == ("tokens.dweight", (2, 1), None)
    assert "tokens.dweight[2, 1] is nan. It read" in culprit.sentence()


def test_rows_that_do_not_tell_batch_from_time_have_no_position():
    assert _axes(["R", "C"], (2, 4, 6)) == _axes(["R"], (2, 4)) == _axes(["B", "1", "C"], (2, 1, 6)) == (0, 1)
    assert _axes(["B", "H", "T"], (2, 3, 4)) == (0, 2)
    assert _axes(["R", "C"], (8, 6)) is None
    assert _axes(["V", "C"], (7, 6)) is None


def test_a_batch_without_targets_is_walked_too():
    model, inputs, targets = made()
    assert find_nonfinite(model, inputs, np.full_like(targets, -1)) is None


def watched(losses, **options):
    spikes = Spikes(**options)
    return [step for step, loss in enumerate(losses) if spikes.see(step, loss)]


def falling(count, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    return 3 * np.exp(-np.arange(count) / 300) + 0.3 + rng.normal(0, noise, count)


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_fall_is_no_spike(seed):
    assert watched(falling(1500, seed)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_near_zero_may_leap_a_little(seed):
    rng = np.random.default_rng(seed)
    losses = 3 * np.exp(-np.arange(1000) / 50) + 0.001 * rng.exponential(size=1000) ** 2
    assert watched(losses) == []


def test_a_spike_is_reported_once_and_the_next_again():
    losses = falling(600)
    losses[200:210] += 2
    losses[[220, 230]] += 2  # the same spike still
    losses[300] += 2
    losses[400:] += 3  # it never comes back: reported once, then it is what is usual
    assert watched(losses) == [200, 300, 400]


def test_a_spike_says_by_how_much():
    spikes = Spikes(window=5)
    for step in range(5):
        assert spikes.see(step, 1.0 + 0.01 * step) is None
    assert spikes.see(5, 9.0) == "the loss leapt to 9 at step 5; over the last 5 updates it was about 1.02 ± 0.015."


def test_the_first_steps_never_spike_and_nan_is_not_one():
    assert watched([1.0] * 49 + [100.0]) == []
    assert watched([1.0] * 50 + [float("nan"), float("inf"), 100.0]) == [52]


def test_the_factor_counts():
    losses = [1 + 0.1 * (step % 2) for step in range(60)]
    losses += [2.0]
    assert watched(losses, factor=5.0) == [60]
    assert watched(losses, factor=50.0) == []


def test_norms_by_layer_beside_the_usual():
    usual = usual_norms([{"embedding": 1.0, "head": 2.0}, {"embedding": 3.0}, {"embedding": 2.0, "head": 4.0}])
    assert usual == {"embedding": 2.0, "head": 3.0}
    assert norms_by_layer({"embedding": 1.0, "head": 30.0, "new": 7.0}, usual) == (
        "Gradient norms by layer: head 30 (usually 3, 10.0×), embedding 1 (usually 2, 0.5×), new 7."
    )
    assert norms_by_layer({"embedding": 0.5, "head": 1.25}) == "Gradient norms by layer: embedding 0.5, head 1.25."
