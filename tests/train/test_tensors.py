"""Whole tensors of chosen steps: what the calls wrote, to the bit, and nothing that is half there."""

import os
from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.files import disk
from tapeless.files.disk import UnwritableError
from tapeless.files.safetensors import read_safetensors
from tapeless.train.history import tensors
from tapeless.train.history.files import files_in
from tapeless.train.history.record import FILE, read_record
from tapeless.train.history.recording import StepRecording
from tapeless.train.history.tensors import FOLDER, kept_arguments
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.files.full_disk import full_at

TINY: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2}
SETTINGS: dict[str, Any] = {
    "data": "operations",
    "batch": 200,
    "lr": 3e-3,
    "save_every": 2,
    "eval_every": 100,
    "record": 3,
}


def session(folder, steps=6, **settings):
    return start(Request("ops-102k", TINY, Settings(steps=steps, **{**SETTINGS, **settings})), folder)


def finish(made, stop=None):
    made.train(stopping=lambda: "enough" if stop == made.trainer.step else None)


def recorded(folder, whole=(1,)):
    model = Model("ops-102k", batch=4, seed=3, **TINY)
    recording = StepRecording(folder, model, 1, whole=whole)
    walk, made = model.walk_step(*batch(), lr=1e-3)
    recording.see(1, 1e-3, walk, made)
    return recording


def kept_in(folder):
    return files_in(folder / FOLDER)


def batch():
    rng = np.random.default_rng(0)
    return rng.integers(0, 20, (4, 8)), rng.integers(0, 5, 4)


def test_every_array_is_the_one_that_its_call_wrote_or_read(tmp_path):
    recorded(tmp_path).write(now=True)
    record = read_record(tmp_path / FILE)
    (path,) = kept_in(tmp_path).values()
    other = Model("ops-102k", batch=4, seed=3, **TINY)
    seen = 0
    for number, (call, arrays) in enumerate(other.trace(*batch())):
        if call.phase == "zero":
            continue
        found = {each.name: each for each in kept_arguments(path, record.header, number)}
        assert {each.name for each in call.writes} <= found.keys()
        for name, each in found.items():
            assert np.array_equal(each.values.reshape(-1), np.asarray(arrays[name]).reshape(-1)), (call, name)
        seen += len(found.keys() - {each.name for each in call.writes})
    reads = sum(len(call["reads"]) for call in record.header.calls if call["phase"] in ("forward", "backward"))
    assert seen > 0.9 * reads  # all but what several calls wrote a part of


def test_a_run_keeps_the_steps_that_were_named_and_a_resumed_one_too(tmp_path):
    whole = session(tmp_path / "whole", record_tensors="5, 2")
    finish(whole)
    finish(session(tmp_path / "cut", record_tensors="2,5"), stop=5)
    kept = kept_in(tmp_path / "cut")
    assert [*kept] == [2, 5]
    kept[5].write_bytes(b"of a step that is made again")
    for path in (tmp_path / "cut" / "checkpoints").glob("step-00000005*"):
        disk.remove_folder(path)
    finish(resume(tmp_path / "cut", {}, {}))
    assert read_record(tmp_path / "whole" / FILE).steps.tolist() == [1, 2, 3, 5, 6]
    for step, path in kept_in(tmp_path / "whole").items():
        ours, theirs = read_safetensors(path), read_safetensors(kept[step])
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_what_did_not_reach_the_disk_is_kept_and_nothing_is_half_there(tmp_path, monkeypatch):
    recording = recorded(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(disk, "perform", full_at(os.fsync))
        with pytest.raises(UnwritableError, match=r"cannot .*step-00000001.safetensors: No space left|cannot keep"):
            recording.write(now=True)
    assert kept_in(tmp_path) == {}
    recording.write(now=True)
    assert [*kept_in(tmp_path)] == [1]


def test_what_names_no_steps_or_too_much_is_refused_in_a_sentence(tmp_path, monkeypatch):
    for said in ("", "abc", "0", "1,,2", "-3", "1.5", "٣", "9" * 40):
        with pytest.raises(TapelessError, match="record_tensors must be updates, counted from 1, such as 1,100,1000"):
            Settings(record_tensors=said).validate()
    with pytest.raises(TapelessError, match="names 65 updates, and 64 is the most"):
        Settings(record_tensors=",".join(map(str, range(1, 66)))).validate()
    with pytest.raises(TapelessError, match="no effect, as record=0 keeps no record"):
        Settings(record=0, record_tensors="1").validate()
    with pytest.raises(TapelessError, match="names update 9, and this training makes 6: name earlier ones"):
        session(tmp_path / "late", record_tensors="1,9")
    monkeypatch.setattr(tensors, "MOST_BYTES", 3_000_000)
    with pytest.raises(TapelessError, match=r"those of 3 steps .* a run keeps at most 2.9 MiB of them: name at most 1"):
        session(tmp_path / "large", record_tensors="1,2,3")
    monkeypatch.setattr(tensors, "MOST_BYTES", 1000)
    with pytest.raises(TapelessError, match="make batch or time smaller, or leave it out"):
        session(tmp_path / "large", record_tensors="1")
    assert [*tmp_path.iterdir()] == []


def test_a_thinned_record_keeps_the_rows_of_these_steps(tmp_path):
    model = Model("ops-102k", batch=4, seed=3, **TINY)
    recording = StepRecording(tmp_path, model, 1, whole=[4], most=130_000)
    for step in range(1, 120):
        if recording.due(step, last=False):
            walk, made = model.walk_step(*batch(), lr=1e-3)
            recording.see(step, 1e-3, walk, made)
            recording.write(now=True)
    assert recording.header.every >= 4
    assert {1, 4} <= set(read_record(tmp_path / FILE).steps.tolist())


def test_files_of_another_list_of_calls_are_refused(tmp_path):
    recorded(tmp_path).write(now=True)
    (path,) = kept_in(tmp_path).values()
    other = Model("ops-102k", batch=4, layers=1, channels=8, heads=2, backend="reference")
    from tapeless.train.history.record import header_of

    with pytest.raises(TapelessError, match="belongs to another list of calls"):
        kept_arguments(path, header_of(other.program), 3)
    (tmp_path / "tensors" / "step-1.safetensors").touch()
    (tmp_path / "tensors" / "notes.txt").touch()
    assert kept_in(tmp_path) == {1: path}
