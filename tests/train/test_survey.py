"""What runs there are, in every state that a run can be in."""

import os
from typing import Any

import pytest

from tapeless.errors import TapelessError
from tapeless.files.lock import hold
from tapeless.train.metrics import Recorder
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tapeless.train.survey import overview, survey

MODEL = {"layers": 1, "channels": 8}


def trained(folder, steps=4, stop=None, **settings):
    chosen: dict[str, Any] = {"data": "operations", "steps": steps, "backend": "reference", "eval_every": 2} | settings
    session = start(Request("ops-102k", MODEL, Settings(**chosen)), folder)
    session.train(stopping=lambda: stop if stop and session.trainer.step == 2 else None)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "finished")
    trained(folder / "inner" / "stopped", stop="stopped by SIGINT")
    killed = trained(folder / "killed")
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    (killed / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:9])  # torn by the kill
    torn = trained(folder / "torn")
    (torn / "metrics.jsonl").write_text("\n".join(["{", *lines]))
    bad = trained(folder / "bad")
    (bad / "config.toml").write_text('preset = "ops-102k"\nlr = "fast"\n')
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "config.toml").touch()
    (folder / "no run").mkdir()
    for age, name in enumerate(("finished", "killed", "torn", "bad", "inner/stopped")):
        for file in ("metrics.jsonl", "config.toml"):
            os.utime(folder / name / file, (1e9 - age, 1e9 - age))
    return folder


def test_every_run_is_found_in_its_state(place):
    found = {each.folder.name: each for each in survey(place)}
    assert {name: each.state for name, each in found.items()} == {
        "finished": "finished",
        "stopped": "stopped",
        "killed": "stopped",
        "torn": "damaged",
        "bad": "damaged",
    }
    assert found["stopped"].reason == "stopped by SIGINT"
    assert found["killed"].reason == "it was killed"
    assert "line 1 of" in found["torn"].reason
    assert "lr" in found["bad"].reason
    one = found["finished"]
    assert (one.kind, one.preset, one.step) == ("operations", "ops-102k", 4)
    judged = [line for line in one.lines if line["kind"] == "evaluation"]
    assert len(judged) == 2
    assert one.loss == judged[-1]["loss"]
    assert one.best == min(line["loss"] for line in judged)
    assert one.accuracy == judged[-1]["accuracy"]
    assert found["stopped"].step == 2


def test_the_order(place):
    assert [each.folder.name for each in survey(place)] == ["finished", "killed", "torn", "bad", "stopped"]
    by_loss = survey(place, by="loss")
    losses = [each.best for each in by_loss if each.best is not None]
    assert losses == sorted(losses)
    assert [each.best for each in by_loss[-2:]] == [None, None]  # of which nothing is known
    with pytest.raises(TapelessError, match="unknown order 'los': did you mean 'loss'"):
        survey(place, by="los")


def test_a_run_that_is_trained_now_is_running(place):
    lock = hold(place / "finished")
    try:
        assert overview(place / "finished").state == "running"
    finally:
        lock.release()
    assert overview(place / "finished").state == "finished"


def test_a_run_that_just_begins_and_one_that_never_did(tmp_path):
    (tmp_path / "new").mkdir()
    lock = hold(tmp_path / "new")
    (found,) = survey(tmp_path)
    assert (found.state, found.reason) == ("running", "it just begins")
    lock.release()
    (tmp_path / "new" / "lock").touch()
    (found,) = survey(tmp_path)
    assert found.state == "damaged"
    assert "killed before it began" in found.reason


def test_what_goes_on_after_a_stop_is_not_stopped_by_it(tmp_path):
    run = trained(tmp_path / "run", stop="stopped by SIGINT")
    Recorder(run).record("step", 3, loss=1.0)
    assert overview(run).reason == "it was killed"


def test_losses_that_are_not_finite_are_no_best(tmp_path):
    run = trained(tmp_path / "run")
    Recorder(run).record("evaluation", 5, loss=float("nan"))
    found = overview(run)
    assert found.loss is None
    assert found.best is not None


def test_without_a_checkpoint(tmp_path):
    run = trained(tmp_path / "run")
    (run / "checkpoints").rename(tmp_path / "away")
    assert overview(run).reason == "it has metrics and no checkpoint"
    (run / "metrics.jsonl").unlink()
    assert overview(run).state == "stopped"


def test_no_folder_and_no_runs(tmp_path):
    assert survey(tmp_path) == []
    with pytest.raises(TapelessError, match="there is no folder"):
        survey(tmp_path / "nowhere")
