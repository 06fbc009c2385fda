"""Dropout in whole models: nothing where it is 0, nothing in an evaluation, the same mask wherever it is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.models import decoding, transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import PRESETS
from tapeless.ops.dropout.reference import factors
from tests.check.steps import small_batch, small_model

SMALL: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2, "vocab": 11, "context": 8}


def test_without_it_the_list_is_what_it_was():
    plain = PRESETS["gpt2-4x256"].override(**SMALL)
    with_zero = plain.override(dropout=0.0)
    optimizer = Optimizer("adamw")
    assert transformer.training(plain, 2, 8, optimizer) == transformer.training(with_zero, 2, 8, optimizer)
    assert not any("drop" in buffer.name for buffer in transformer.training(plain, 2, 8, optimizer).buffers)


def test_only_a_training_step_drops():
    preset = PRESETS["gpt2-4x256"].override(dropout=0.1, **SMALL)
    step = transformer.training(preset, 2, 8, None)
    calls = [call.title for call in step.calls if call.op in ("dropout", "count_draws")]
    assert calls == ["count_draws.forward", *["dropout.forward"] * 5, *["dropout.backward"] * 5]
    sites = [dict(call.scalars)["site"] for call in step.calls if call.title == "dropout.forward"]
    assert sites == [0, 1, 2, 3, 4]
    for other in (
        transformer.evaluation(preset, 2, 8),
        transformer.readout(preset, 2, 8),
        decoding.decoding(preset),
        decoding.reading(preset, 4),
    ):
        assert not {"dropout", "count_draws"} & {call.op for call in other.calls}


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, float("nan"), float("inf"), "0.1", True, None])
def test_a_rate_that_is_none_is_refused_in_a_sentence(rate):
    with pytest.raises(TapelessError, match=r"^dropout must be the share that is left out, .* such as 0\.1, not .*\.$"):
        Model("gpt2-4x256", dropout=rate, **SMALL)


@pytest.mark.parametrize("recompute", [False, True])
def test_reference_and_cpu_drop_the_same_on_any_number_of_threads(recompute):
    """At a size that threads: every dropout call, forward, recomputed and backward, drops what the counter says.

    A gradient may itself be rounded to 0, on some processors and not on others: what is dropped is read off only where
    a number came in that no factor above 1 makes 0.
    """
    fields: dict[str, Any] = {**SMALL, "channels": 256, "context": 160, "dropout": 0.3, "recompute": recompute}
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 11, (2, 160))
    before = cpu_kernels.threads()
    for backend, threads in (("reference", 1), ("cpu", 1), ("cpu", 2)):
        cpu_kernels.set_threads(min(threads, cpu_kernels.cores()))
        calls = 0
        try:
            model = Model("gpt2-4x256", batch=2, time=160, backend=backend, precision="float32", seed=7, **fields)
            model.draws = 40  # the step counts one more
            for call, arrays in model.trace(tokens, tokens):
                if call.op == "dropout":
                    calls += 1
                    result, given = ("y", "x") if call.direction == "forward" else ("dx", "dy")
                    scalars = dict(call.scalars)
                    mask = factors(arrays[result].size, np.array([7]), np.array([41]), scalars["rate"], scalars["site"])
                    kept = mask.reshape(arrays[result].shape) != 0
                    shown = np.abs(arrays[given]) >= np.finfo(np.float32).tiny
                    assert shown.mean() > 0.99
                    assert np.array_equal((arrays[result] != 0)[shown], kept[shown]), (backend, threads, call.source)
                    assert not arrays[result][~kept].any(), (backend, threads, call.source)
        finally:
            cpu_kernels.set_threads(before)
        assert calls == 10 + (2 if recompute else 0)


def test_recomputing_drops_the_same_and_the_seed_decides():
    losses = {}
    for recompute in (False, True):
        for seed in (1, 2):
            model = Model("gpt2-4x256", batch=2, time=8, seed=seed, dropout=0.5, recompute=recompute, **SMALL)
            for name in model.params:
                model.write(name, 0.1)
            model.params["tokens.weight"][...] = np.random.default_rng(0).normal(size=(11, 8))
            tokens = np.arange(16).reshape(2, 8) % 11
            loss = model.forward_backward(tokens, tokens)
            losses[recompute, seed] = (loss, {name: grad.tobytes() for name, grad in model.grads.items()})
    assert losses[False, 1] == losses[True, 1]
    assert losses[False, 2] == losses[True, 2]
    assert losses[False, 1] != losses[False, 2]


def test_a_refused_step_counts_what_it_drew():
    model = small_model("adamw", dropout=0.3)
    model.params["norm.weight"][...] = np.nan
    made = model.step(*small_batch(2, seed=0), lr=0.1)
    assert not made.finite
    assert (model.steps, model.draws) == (0, 1)
    with pytest.raises(NonFiniteError):
        model.update(0.1)
    assert model.draws == 1


def test_a_run_that_overfits_without_overfits_less_with_it():
    """What it is for: sixteen sentences to learn by heart, and as many held out."""
    rng = np.random.default_rng(0)
    fields = {**SMALL, "channels": 32, "heads": 4}
    table = rng.integers(0, 11, 11)
    starts, noise = rng.integers(0, 11, (32, 1)), rng.integers(0, 11, (32, 9))
    tokens = np.where(rng.random((32, 9)) < 0.5, noise, table[(starts + np.arange(9)) % 11])
    held_out = []
    for rate in (0.0, 0.3):
        model = Model("gpt2-4x256", batch=16, time=8, seed=1, dropout=rate, **fields)
        for _ in range(150):
            model.step(tokens[:16, :8], tokens[:16, 1:], lr=3e-3)
        held_out.append(model.loss(tokens[16:, :8], tokens[16:, 1:]))
    assert held_out[1] < held_out[0]
