"""Runs side by side."""

import json
from typing import Any

import pytest

from tapeless.errors import TapelessError
from tapeless.train.comparison import compare
from tapeless.train.metrics import read_metrics
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings


def trained(folder, preset="ops-102k", model=None, stop=None, **settings):
    chosen: dict[str, Any] = {"data": "operations", "steps": 4, "backend": "reference", "eval_every": 2} | settings
    session = start(Request(preset, model or {"layers": 1, "channels": 8}, Settings(**chosen)), folder)
    session.train(stopping=lambda: stop if session.trainer.step == 2 else None)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("some words to learn from\n" * 90)
    small = {"layers": 1, "channels": 8, "heads": 2}
    trained(folder / "a")
    trained(folder / "b", lr=3e-3, steps=6, model={"layers": 2, "channels": 8})
    trained(folder / "stopped", stop="stopped by SIGINT")
    text = {"preset": "gpt2-4x256", "model": small, "data": str(folder / "text.txt"), "time": 8, "batch": 2}
    trained(folder / "bytes", **text)
    trained(folder / "bpe", **text | {"tokenizer": "bpe", "model": small | {"vocab": 280}})
    return folder


def test_what_differs_and_nothing_else(place):
    found = compare([place / "a", place / "b"])
    assert found.differing == {"layers": [1, 2], "steps": [4, 6], "lr": [2e-3, 3e-3]}
    assert found.remarks == []
    same = compare([place / "a", place / "stopped"])
    assert same.differing == {}
    assert [each.state for each in same.runs] == ["finished", "stopped"]


def test_curves_are_the_held_out_losses_with_the_others_beside(place):
    found = compare([place / "a", place / "b"])
    for folder, curve, length in ((place / "a", found.curves[0], 2), (place / "b", found.curves[1], 3)):
        lines = read_metrics(folder)
        judged = [(line["step"], line["loss"]) for line in lines if line["kind"] == "evaluation"]
        assert curve.points == judged
        assert len(curve.points) == length
        assert curve.beside == [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]


def test_kinds_that_cannot_be_compared_are_told(place):
    assert "different things" in compare([place / "a", place / "bytes"]).remarks[0]
    assert "bits per byte" in compare([place / "bpe", place / "bytes"]).remarks[0]
    assert compare([place / "a", place / "bytes"]).differing["data"] == ["operations", str(place / "text.txt")]


def test_a_run_without_evaluations_has_its_own_losses(place, tmp_path):
    run = trained(tmp_path / "early", eval_every=100, stop="stopped by SIGINT")
    found = compare([place / "a", run])
    assert found.curves[1].points
    assert found.curves[1].beside == ()
    assert any("was not judged yet" in remark for remark in found.remarks)
    (run / "metrics.jsonl").unlink()
    assert "different things" not in " ".join(compare([place / "bytes", run]).remarks)  # one alone has losses
    found = compare([place / "a", run])
    assert found.curves[1].points == []
    assert any("has no metrics" in remark for remark in found.remarks)


def test_a_run_that_ended_in_no_number_is_told(place, tmp_path):
    run = trained(tmp_path / "run")
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-2], json.dumps(json.loads(lines[-2]) | {"loss": None}), lines[-1], ""]))
    assert compare([place / "a", run]).remarks == [f"{run} ended with a held-out loss that is not finite."]


def test_mistakes(place, tmp_path):
    for folders, said in (
        ([place / "a"], "two runs at least"),
        ([place / "a", place / "b" / ".." / "a"], "was named twice"),
        ([place / "a", tmp_path / "nowhere"], "is not there"),
        ([place / "a", tmp_path], "is not a run"),
        ([place / "a"] * 27, "too many"),
    ):
        with pytest.raises(TapelessError, match=said):
            compare(folders)
    run = trained(tmp_path / "torn")
    (run / "metrics.jsonl").write_text("{\n{}\n")
    with pytest.raises(TapelessError, match=r"torn cannot be compared: line 1 of .* is not a line of metrics"):
        compare([place / "a", run])
