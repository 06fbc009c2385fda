"""Snapshots: the weights of a run at a few steps, that they are the run's own, and what a reader believes."""

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.files.safetensors import write_safetensors
from tapeless.train.history import snapshots as module
from tapeless.train.history.files import files_in
from tapeless.train.history.snapshots import FOLDER, Snapshots, read_snapshots
from tapeless.train.session import resume
from tests.train.test_records import FIELDS, finish, trained


def test_snapshots_are_the_weights_of_the_run(tmp_path):
    session = trained(tmp_path / "run", steps=40)
    found = read_snapshots(tmp_path / "run")
    assert found.steps == [0, 1, 2, 3, 5, 8, 12, 17, 25, 36, 40]
    first = Model("ops-102k", batch=200, seed=0, **FIELDS)
    assert found.weights[0].keys() == first.params.keys()
    for name, values in found.weights[0].items():
        assert np.array_equal(values, first.params[name]), name
    for name, values in found.weights[40].items():
        assert np.array_equal(values, session.model.params[name]), name


def test_a_run_without_a_record_keeps_none(tmp_path):
    trained(tmp_path / "run", steps=2, record=0)
    assert not (tmp_path / "run" / FOLDER).exists()


def test_full_snapshots_are_thinned_and_a_large_model_keeps_none(tmp_path):
    model = Model("ops-102k", batch=4, **FIELDS)
    most = 9 * (4 * model.parameters + 200 * len(model.params))
    snapshots = Snapshots(tmp_path, model, most)
    for step in range(3000):
        snapshots.take(step)
        snapshots.files.write()
        assert sum(path.stat().st_size for path in files_in(tmp_path / FOLDER).values()) <= most
    steps = read_snapshots(tmp_path).steps
    assert steps[0] == 0
    assert steps[-1] >= 750
    assert 4 <= len(steps) <= 9
    assert steps == snapshots.files.steps
    large = Snapshots(tmp_path / "none", model, most // 2)
    large.take(0)
    large.files.write()
    assert not (tmp_path / "none").exists()


def test_a_resumed_run_goes_on_with_its_snapshots(tmp_path):
    trained(tmp_path / "whole", steps=12)
    trained(tmp_path / "cut", steps=12, stop=6)
    (tmp_path / "cut" / FOLDER / "step-00000008.safetensors.part").write_bytes(b"\x01" * 333)  # what a kill may leave
    (tmp_path / "cut" / FOLDER / "step-00000008.safetensors").write_bytes(b"of a step that is made again")
    session = resume(tmp_path / "cut", {}, {})
    assert [*files_in(tmp_path / "cut" / FOLDER)] == [0, 1, 2, 3, 5]
    finish(session)
    whole, cut = (
        {path.name: path.read_bytes() for path in (tmp_path / n / FOLDER).iterdir()} for n in ("whole", "cut")
    )
    assert cut == whole


def test_what_is_no_snapshot_is_counted_and_left_out(tmp_path):
    write_safetensors(tmp_path / "sound", {"w": np.ones(3, np.float32)})
    sound = (tmp_path / "sound").read_bytes()
    write_safetensors(tmp_path / "wide", {"w": np.ones(3)})
    (tmp_path / FOLDER).mkdir()
    wrong = [b"", b"{}\n", b"\x00" * 50, sound[:-1], (tmp_path / "wide").read_bytes()]
    for step, content in enumerate([sound, *wrong]):
        (tmp_path / FOLDER / f"step-{step:08}.safetensors").write_bytes(content)
    found = read_snapshots(tmp_path)
    assert (found.steps, found.lost) == ([0], len(wrong))
    assert found.weights[0]["w"].tolist() == [1, 1, 1]


def test_more_than_any_run_keeps_is_refused(tmp_path, monkeypatch):
    (tmp_path / FOLDER).mkdir()
    for step in range(3):
        write_safetensors(tmp_path / FOLDER / f"step-{step:08}.safetensors", {"w": np.ones(100, np.float32)})
    monkeypatch.setattr(module, "LARGEST", 1000)
    with pytest.raises(TapelessError, match="holds more than the snapshots of any run: remove it"):
        read_snapshots(tmp_path)
