"""What `tapeless check PRESET` says first: the wiring at full size, before anything runs."""

from __future__ import annotations

import json

import pytest
import typer

from tapeless.check.wiring import check_wiring
from tapeless.cli.check import check
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tests.bugs.blocks import BUGS

LOST = next(bug for bug in BUGS if bug.name == "residual-lost-in-pre-norm")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_wired_rightly_at_full_size(name: str) -> None:
    wiring = check_wiring(name)
    assert wiring.ok
    assert wiring.parameters > 100_000
    assert all(OPS[op].SPEC.backward for op in wiring.ops)
    norm = PRESETS[name].architecture.norm_kind
    assert {"linear", norm, "attention"} <= set(wiring.ops)


def test_a_preset_that_is_wired_wrongly_is_refused() -> None:
    with LOST.plant():
        wiring = check_wiring("gpt2-1558m")
    assert not wiring.ok
    assert "dstream is overwritten by layernorm.backward at " in wiring.refusal
    assert (wiring.calls, wiring.ops) == (0, ())


def test_the_command_stops_at_the_wiring(capsys: pytest.CaptureFixture[str]) -> None:
    """A model whose list is wrong is not run at all, and what is wrong with it is said."""
    for as_json in (True, False):
        with LOST.plant(), pytest.raises(typer.Exit) as ended:
            check(["gpt2-4x256"], json=as_json)
        assert ended.value.exit_code == 1
        said = capsys.readouterr().out
        assert "dstream is overwritten by" in said
        assert "All" not in said
        if as_json:
            report = json.loads(said)
            assert report["ok"] is False
            assert (report["tensors"], report["worst"], report["models"]["gradients"]) == (0, None, 0)
        else:
            assert "refused" in said
            assert "gpt2-4x256 is wired wrongly" in said
