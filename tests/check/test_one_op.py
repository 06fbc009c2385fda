"""One op by itself, as `tapeless check OP` has it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tapeless.backends.backend import backend_named
from tapeless.check.one_op import check_one
from tapeless.cli.app import app
from tapeless.ops import OPS

RUNNER = CliRunner(env={"COLUMNS": "80"})


def test_a_healthy_op_holds_in_every_respect():
    report = check_one("tanh", backend_named("cpu"))
    assert report, report
    assert len(report.gradients) == 1
    assert report.results
    assert report.ranges
    for part in ("derivative: 1 gradients", "cpu: ", "threads: ", "range: "):
        assert part in str(report)


def test_a_broken_reference_is_named(monkeypatch):
    healthy = OPS["tanh"].backward
    monkeypatch.setattr(OPS["tanh"], "backward", lambda dx, dy, y: healthy(dx, 1.001 * dy, y))
    report = check_one("tanh", None)
    assert not report
    assert "dx is off by" in str(report)
    assert "found by complex step" in str(report)


def test_a_broken_kernel_is_named(monkeypatch):
    from tapeless.ops.tanh import cpu

    def backward(dx, dy, y):
        return cpu.forward(dx, dy)

    monkeypatch.setattr(cpu, "backward", backward)
    report = check_one("tanh", backend_named("cpu"))
    assert not report
    assert "tanh.backward" in str(report)


def test_the_command():
    done = RUNNER.invoke(app, ["check", "zero", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["ops"][0] == {
        "op": "zero",
        "ok": True,
        "worst_gradient": None,
        "worst_share_of_tolerance": 0.0,
        "worst_share_over_the_range": 0.0,
        "findings": [],
    }
    assert "zero: holds." in RUNNER.invoke(app, ["check", "zero", "--backend", "cpu"]).output


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["layernrom"], "unknown preset or op 'layernrom': did you mean 'layernorm'?"),
        (["gelu", "gpt2-4x256"], "an op is proven alone"),
        (["gelu", "--bugs"], "an op is proven alone"),
        (["gelu", "gpt2-4x25"], "unknown preset or op 'gpt2-4x25': choose one of gpt2-4x256"),
        (["gpt2-4x25"], "unknown preset or op 'gpt2-4x25'"),
    ],
)
def test_slips_get_one_sentence(names, sentence):
    done = RUNNER.invoke(app, ["check", *names])
    assert done.exit_code == 1
    assert sentence in str(done.exception)
