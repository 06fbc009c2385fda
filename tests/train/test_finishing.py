"""The end of a run, and what lies before it: finished wherever it was ended, told of the best weights, and recorded as
if nothing had ended it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.cli import train as command
from tapeless.cli.common import console
from tapeless.train import checkpoint
from tapeless.train.guard import Spikes
from tapeless.train.history.record import FILE, encoded, read_record
from tapeless.train.history.recording import TRIED, StepRecording
from tapeless.train.history.snapshots import SERIES, Snapshots, read_snapshots
from tapeless.train.loop import Finished, SaveDue
from tapeless.train.metrics import read_metrics
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.train.following import follow, kill
from tests.train.test_records import FIELDS, record_one

SETTINGS: dict[str, Any] = {"data": "operations", "batch": 200, "steps": 6, "eval_every": 2, "lr": 3e-3}


def begun(folder, **settings):
    return start(Request("ops-102k", FIELDS, Settings(**{**SETTINGS, "record": 2, **settings})), folder)


def stops(folder):
    return [line["reason"] for line in read_metrics(folder) if line["kind"] == "stop"]


def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished(tmp_path):
    kill(begun(tmp_path / "run"), lambda event: event == SaveDue(6, best=True))
    assert stops(tmp_path / "run") == []
    again = resume(tmp_path / "run", {}, {})
    assert again.messages == [
        f"{tmp_path / 'run'} was ended before its report: all 6 updates are done; go on by giving more with --steps."
    ]
    assert [type(event) for event in follow(again)] == [Finished]
    assert stops(tmp_path / "run") == ["all 6 updates are done"]
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    complete = resume(tmp_path / "run", {}, {})
    assert "is complete: all 6 updates are done" in complete.messages[0]
    status = command.follow(complete, shown=False)
    assert (status.code, status.reason) == (0, "all 6 updates are done")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    more = resume(tmp_path / "run", {}, {"steps": 8})
    assert follow(more)[-1] == Finished("all 8 updates are done")


def test_a_run_that_stopped_early_makes_no_further_update(tmp_path):
    session = begun(tmp_path / "run", lr=1e-9, steps=20, eval_every=1, patience=1)
    session.trainer.best = 0.0  # which nothing is better than
    assert follow(session)[-1] == Finished("stopped early: 1 evaluations were no better than 0.0000")
    again = resume(tmp_path / "run", {}, {})
    assert "go on by giving more with --patience" in again.messages[0]
    assert [type(event) for event in follow(again)] == [Finished]
    assert again.trainer.step == session.trainer.step == 1
    longer = resume(tmp_path / "run", {}, {"patience": 3})
    assert follow(longer)[-1] == Finished("stopped early: 3 evaluations were no better than 0.0000")


def test_the_answers_are_those_of_the_best_checkpoint(tmp_path):
    """Which is not the last: from there on the rate is such that it learns the wrong things."""
    session = begun(tmp_path / "run", steps=4, lr=1e-2)
    session.train()
    worse = resume(tmp_path / "run", {}, {"steps": 8, "lr": 100.0})
    status = command.follow(worse, shown=False)
    best, _ = checkpoint.best(tmp_path / "run" / "checkpoints")
    assert best is not None
    assert best.step < 8
    with console.capture() as shown:
        command.print_farewell(worse, status, 1.0)
    said = " ".join(shown.get().split())
    for name, values in best.tensors("weights").items():
        assert np.array_equal(worse.model.params[name], values), name
    evaluations = [each for each in read_metrics(tmp_path / "run") if each["kind"] == "evaluation"]
    (line,) = [each for each in evaluations if each["step"] == best.step]
    assert f"never trained on, answered with the best checkpoint, of step {best.step}" in said
    right = f"{line['accuracy']:.2%} of what was held out is right, by the best checkpoint, of step {best.step}, after"
    assert right in said


def test_what_a_spike_is_held_against_outlives_the_process():
    losses = [1.0 + 0.01 * (step % 3) for step in range(60)] + [9.0] + [1.0] * 60 + [9.0]
    whole = Spikes()
    expected = [whole.see(step, loss) for step, loss in enumerate(losses)]
    assert sum(each is not None for each in expected) == 2
    for cut in (10, 55, 61, 70, 120):
        first, second = Spikes(), Spikes()
        found = [first.see(step, loss) for step, loss in enumerate(losses[:cut])]
        second.restore(first.state())
        found += [second.see(step, loss) for step, loss in enumerate(losses[cut:], cut)]
        assert found == expected


class Counted:
    """In the place of a model's weights: what is to be kept of a step is its number."""

    def __init__(self):
        self.params = {"w": np.zeros(8, np.float32)}
        self.parameters, self.step = 8, 0

    def weights(self):
        return {"w": np.full(8, self.step, np.float32)}


def snapshots_of(folder, most=1700):
    return Snapshots(folder, Counted(), most)  # type: ignore[arg-type]


def go_through(snapshots, steps, last):
    for step in steps:
        snapshots._model.step = step
        snapshots.take(step, last=step == last)
        if step % 7 == 0:
            snapshots.files.write()
    snapshots.files.write()


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("reached", [9, 30, 100, 400, 999])
@pytest.mark.parametrize("saved", [0, 1, 8, 12, 25, 99])
def test_snapshots_are_the_same_wherever_they_were_cut(tmp_path, saved, reached):
    """A process was killed at `reached`, and its last checkpoint was of `saved`."""
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    go_through(snapshots_of(tmp_path / "whole"), range(1000), 999)
    go_through(snapshots_of(tmp_path / "cut"), range(reached), 999)
    resumed = snapshots_of(tmp_path / "cut")
    resumed.files.cut_after(saved)
    go_through(resumed, range(min(saved, reached - 1) + 1, 1000), 999)
    found = read_snapshots(tmp_path / "whole").steps
    assert 4 < len(found) <= snapshots_of(tmp_path)._capacity == 10
    assert set(found) <= {*SERIES[::4], 999}
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_records_are_the_same_wherever_they_were_cut(tmp_path):
    def walked(recording, model, steps):
        for step in steps:
            if recording.due(step, last=step == 60):
                values = np.full(recording.header.values, step, np.float32)
                recording._add(step, encoded(step, 1.0 / step, 1e-3, 0.1 * step, values))
            if step % 5 == 0:
                recording.write(now=True)
        recording.write(now=True)

    model = Model("ops-102k", batch=4, **FIELDS)
    header = StepRecording(tmp_path, model).header
    most = len(header.encoded()) + 12 * len(encoded(10, 1.0, 1e-3, 0.1, np.full(header.values, 10, np.float32)))
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    walked(StepRecording(tmp_path / "whole", model, 1, whole=[7], most=most), model, range(1, 61))
    found = read_record(tmp_path / "whole" / FILE)
    assert found.header.every == 8
    assert found.steps.tolist() == [1, 7, *range(8, 61, 8), 60]
    for saved, reached in ((0, 3), (3, 13), (10, 30), (30, 31), (20, 60)):
        (tmp_path / "cut" / FILE).unlink(missing_ok=True)
        walked(StepRecording(tmp_path / "cut", model, 1, whole=[7], most=most), model, range(1, reached + 1))
        resumed = StepRecording(tmp_path / "cut", model, 1, whole=[7], most=most)
        resumed.cut_after(saved)
        walked(resumed, model, range(saved + 1, 61))
        assert (tmp_path / "cut" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes(), (saved, reached)


def test_how_often_is_measured_once_and_kept(tmp_path):
    """A machine that is slower later, or another, records the same steps."""
    model = Model("ops-102k", batch=4, **FIELDS)

    def walked(recording, steps, extra):
        for step in steps:
            recorded = recording.due(step, last=False)
            if recorded:
                record_one(recording, model, step)
            recording.took(1.0 + extra * recorded)
        recording.write(now=True)

    recording = StepRecording(tmp_path, model, clock=lambda: 0.0)
    walked(recording, range(1, 41), extra=0.1)
    assert read_record(tmp_path / FILE).header.chosen == 8  # 0.1 / 0.015 is between four and eight
    resumed = StepRecording(tmp_path, model, clock=lambda: 0.0)
    resumed.cut_after(20)
    walked(resumed, range(21, 41), extra=5.0)
    assert read_record(tmp_path / FILE).steps.tolist() == [*TRIED, 24, 32, 40]
    early = StepRecording(tmp_path, model, clock=lambda: 0.0)
    (tmp_path / FILE).unlink()
    early.cut_after(100)  # it never recorded before
    walked(early, range(101, 141), extra=0.1)
    assert read_record(tmp_path / FILE).steps.tolist() == [*(100 + each for each in TRIED), 120, 128, 136]


def test_trainings_that_are_killed_in_every_phase_record_what_one_that_was_not_does():
    """Twice in each phase, of each of two kinds; `make kills` does it five hundred times. A few seconds, since each
    life is a process."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.kills", "--kills", "14", "--seed", "1"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"14 kills \((2 \w+ [ \w]+(, )?){7}\): all \d+ trainings recorded what .*", last), last
