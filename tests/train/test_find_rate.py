"""Looking for a learning rate: where the best lies it is found, and nothing is left of the search."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from math import inf, log10
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tapeless.cli.app import app
from tapeless.errors import TapelessError
from tapeless.train import find_rate as finding
from tapeless.train.find_rate import MemoryCheckpoint, RateFound, Swept, Tried, find_rate
from tapeless.train.rate_picture import picture
from tests.check.training import _trainer

SMALL = ["--set", "layers=1", "--set", "channels=8", "--set", "heads=2", "--steps", "16", "--batch", "8"]


def learning():
    """A small model on a few batches; what is held out are those."""
    trainer = _trainer(dropout=0.3)
    task: Any = trainer.task
    task.evaluate = lambda model, batches: finding_measured(np.mean([model.loss(*each) for each in task.given]))
    trainer.steps = 16
    return trainer


def finding_measured(loss):
    from tapeless.tasks.task import Measured

    return Measured(float(loss))


def state(trainer):
    kept = MemoryCheckpoint(trainer)
    arrays = {f"{stem}/{name}": array.tobytes() for stem, each in kept._tensors.items() for name, array in each.items()}
    return json.dumps(kept.state, sort_keys=True), arrays, trainer.schedule


@pytest.mark.parametrize("before", [0, 3])
def test_nothing_is_left_of_the_search(before):
    """Also where the training was in the middle of an update, with dropout and moments."""
    trainer = learning()
    for _ in range(before):
        trainer.batch()
    was = state(trainer)
    told = []
    found = find_rate(trainer, lambda what, done, of: told.append((done, of)))
    assert state(trainer) == was
    assert found.best.loss < found.before
    assert [done for done, _ in told] == list(range(1, found.updates + 1))
    assert all(done <= of for done, of in told)


def test_nothing_is_left_where_it_is_interrupted():
    trainer = learning()
    was = state(trainer)

    def stop(what, done, of):
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_rate(trainer, stop)
    assert state(trainer) == was


@pytest.mark.parametrize("best", [1e-6, 1e-5, 3e-4, 0.004, 0.07, 1.0, 30.0])
@pytest.mark.parametrize("swept", [1e-3, 0.3])
def test_the_best_is_found_also_far_from_where_the_sweep_points(monkeypatch, best, swept):
    """A valley over the logarithm of the rate, steeper on the side of rates that are too high, and infinite beyond."""

    def valley(search, rate, updates):
        away = log10(rate / best)
        return inf if away > 1.2 else 2 + away**2 * (2 if away > 0 else 1)

    monkeypatch.setattr(finding._Search, "_tried", valley)
    monkeypatch.setattr(finding._Search, "_evaluated", lambda search: 10.0)
    monkeypatch.setattr(finding._Search, "_sweep", lambda search: (Swept(swept, 1.0, 1.0),))
    found = find_rate(learning())
    if abs(log10(best / swept)) < 4:
        # A quarter of a decade between what is tried, and of what is nearly as good the lowest.
        assert -0.13 - 0.4 <= log10(found.rate / best) <= 0.13
    lowest = min(each.loss for each in found.tries if each.updates == found.best.updates)
    assert found.best.loss <= lowest + 0.02 * (found.before - lowest)


def test_a_loss_that_is_not_finite_from_the_start():
    trainer = learning()
    trainer.model.params["norm.weight"][...] = np.nan
    with pytest.raises(TapelessError, match=r"^the loss is nan before anything is learned.*\.$"):
        find_rate(trainer)


def test_what_diverges_everywhere_and_what_learns_nowhere(monkeypatch):
    monkeypatch.setattr(finding._Search, "_tried", lambda search, rate, updates: inf)
    with pytest.raises(TapelessError, match=r"^the training diverges at every rate that was tried, down to .*\.$"):
        find_rate(learning())
    monkeypatch.setattr(finding._Search, "_tried", lambda search, rate, updates: 1e9)
    with pytest.raises(TapelessError, match=r"^nothing is learned in \d+ updates at any rate from .*\.$"):
        find_rate(learning())


def test_the_picture_is_one():
    sweep = tuple(Swept(10.0**power, 5.0, 5 - power / 9) for power in range(-7, 1))
    found = RateFound(0.1, 5.0, sweep, (Tried(0.1, 9, 3.0), Tried(1.0, 9, inf), Tried(0.1, 20, 2.0)), 90, 1.0)
    root = ET.fromstring(picture(found))
    words = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert "suggested learning rate 1.0e-01" in words
    assert "×" in words


def test_the_command_suggests_and_writes_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", *SMALL, "--find-lr", "--json", "--out", "rates.svg"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert 1e-7 < found["rate"] < 100
    lowest = min(each["loss"] for each in found["tries"] if each["updates"] == 10)
    assert lowest <= found["loss"] <= lowest + 0.02 * (found["loss_before"] - lowest)
    assert [path.name for path in tmp_path.iterdir()] == ["rates.svg"]
    shown = CliRunner().invoke(app, ["train", *SMALL, "--find-lr"])
    assert "suggested learning rate" in shown.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["rates.svg"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--resume", "runs/x"], "--find-lr looks for the rate of a run that begins"),
        (["--out", "runs/x"], "--out must end in .svg, not 'runs/x'"),
        (["--out", "nowhere/x.svg"], "nowhere is no folder"),
    ],
)
def test_what_does_not_go_with_it_is_refused(given, said):
    result = CliRunner().invoke(app, ["train", "--find-lr", *given])
    assert result.exit_code != 0
    assert said in (str(result.exception) + result.output)
