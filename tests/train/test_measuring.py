"""Branches of the residual stream on recorded steps: what a walk of the same step measures."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.kernels.cpu import bind_beside, has_bfloat16
from tapeless.train.history.measuring import MEASURED, added, compare, joinings
from tapeless.train.history.record import FILE, read_record
from tapeless.train.history.recording import StepRecording
from tests.tracing.stream import branches

TINY: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2}


@pytest.mark.parametrize(
    ("preset", "backend", "fields"),
    [
        ("ops-102k", "cpu", {}),
        ("ops-102k", "reference", {"placement": "pre"}),
        pytest.param(
            "gpt2-4x256",
            "cpu",
            {"precision": "bfloat16", "vocab": 40, "time": 8, "recompute": True},
            marks=pytest.mark.skipif(not has_bfloat16(), reason="this processor multiplies no bfloat16"),
        ),
    ],
)
def test_a_recorded_step_has_the_branches_that_a_walk_measures(tmp_path, preset, backend, fields):
    made = [Model(preset, batch=4, seed=3, backend=backend, **TINY, **fields) for _ in range(2)]
    model, other = made
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (4, model.time))
    targets = rng.integers(0, 5, 4 if model.config.readout == "last" else tokens.shape)
    recording = StepRecording(tmp_path, model)
    walk, stepped = model.walk_step(tokens, targets, lr=1e-3)
    recording.see(1, 1e-3, walk, stepped)
    recording.write(now=True)
    found = read_record(tmp_path / FILE)
    walked = branches(other, tokens, targets)
    assert [(each.call, each.direction, each.name) for each in walked] == [
        (each.call, each.direction, each.name) for each in found.header.branches
    ]
    assert {each.direction for each in walked} == {"forward", "backward"}
    measured = found.rows[0, found.header.first_branch :].reshape(-1, len(MEASURED))
    wanted = [[getattr(each, name) for name in MEASURED] for each in walked]
    np.testing.assert_allclose(measured, wanted, rtol=2e-5, atol=2e-6)


def test_the_kernel_and_numpy_measure_the_same():
    rng = np.random.default_rng(1)
    for size in (1, 7, 1000):
        one, other = rng.normal(size=(2, size)).astype(np.float32)
        for highway, branch in ((one, other), (one, -one), (one, 0 * other), (np.float32(1e30) * one, other)):
            ours, plain = np.zeros(3, np.float32), np.zeros(3, np.float32)
            bind_beside(ours, highway, branch)()
            compare(plain, highway, branch)
            np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
    bind_beside(ours, np.full(3, np.nan, np.float32), np.ones(3, np.float32))()
    assert np.isnan(ours[1])  # what is not finite is no size


def test_every_addition_to_the_streams_gradient_is_a_branch():
    program = Model("gpt2-4x256", batch=1, time=8, backend="reference", vocab=30, **TINY).program
    found = joinings(program)
    assert [each.call for each in found] == sorted(each.call for each in found)
    assert {each.call for each in found if each.direction == "backward"} == {
        number for number, call in enumerate(program.calls) if added(call)
    }
    assert [each.name for each in found if each.direction == "forward"] == [
        f"blocks.{block}.{part}" for block in (0, 1) for part in ("attn.proj", "mlp.down")
    ]
