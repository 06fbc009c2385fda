"""Records: what a recorded step keeps, that it changes nothing and costs little, and what a reader believes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.files import disk
from tapeless.files.disk import UnwritableError
from tapeless.train.history.files import Lines
from tapeless.train.history.measuring import measure
from tapeless.train.history.record import (
    FILE,
    LEAD,
    STATISTICS,
    flow,
    header_of,
    min_max,
    read_record,
    weight_gradients,
)
from tapeless.train.history.recording import COST, PAUSE, StepRecording
from tapeless.train.loop import Finished
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.files.full_disk import full_at
from tests.train.following import follow

FIELDS: dict[str, Any] = {"layers": 2, "channels": 8, "heads": 2}
SETTINGS: dict[str, Any] = {"data": "operations", "batch": 200, "lr": 3e-3, "save_every": 4, "eval_every": 100}


def trained(folder: Path, steps=8, stop=None, **settings):
    session = start(Request("ops-102k", FIELDS, Settings(steps=steps, **{**SETTINGS, **settings})), folder)
    finish(session, stop)
    return session


def finish(session, stop=None):
    for event in follow(session, lambda: "enough" if stop == session.trainer.step else None):
        assert not isinstance(event, Finished) or event.reason


@pytest.fixture
def model():
    return Model("ops-102k", batch=4, seed=3, **FIELDS)


def batch(model, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, model.config.vocab, (model.batch, model.time)), rng.integers(0, 5, model.batch)


def record_one(recording, model, step=1):
    walk, made = model.walk_step(*batch(model), lr=1e-3, clip=1.0)
    recording.see(step, 1e-3, walk, made)
    return made


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_row_holds_what_the_calls_wrote(tmp_path, backend):
    model = Model("ops-102k", batch=4, seed=3, backend=backend, **FIELDS)
    other = Model("ops-102k", batch=4, seed=3, backend=backend, **FIELDS)
    recording = StepRecording(tmp_path, model)
    made = record_one(recording, model, step=(1 << 24) + 5)
    recording.write(now=True)
    found = read_record(tmp_path / FILE)
    assert found.steps.tolist() == [(1 << 24) + 5]
    assert found.rows[0, LEAD.index("loss")] == np.float32(made.loss)
    wanted = {}
    for number, (call, arrays) in enumerate(other.trace(*batch(other))):
        for index, argument in enumerate(call.writes):
            values = np.asarray(arrays[argument.name], np.float64)
            wanted[number, index] = (np.sqrt(np.mean(values**2)), np.mean(values == 0), np.abs(values).max(), 0.0)
    assert len(found.header.results) > 60
    for result, where in enumerate(found.header.results):
        columns = [found.header.column(result, statistic) for statistic in STATISTICS]
        np.testing.assert_allclose(found.rows[0, columns], wanted[where], rtol=3e-6)


def test_the_kernel_and_numpy_measure_the_same():
    from tapeless.kernels.cpu import bind_statistics

    rng = np.random.default_rng(1)
    for size in (1, 7, 1000):
        values = (rng.normal(size=size) * 10.0 ** rng.integers(-30, 30, size)).astype(np.float32)
        for wrong in ((), (np.nan,), (np.inf, -np.inf, -0.0, 0.0)):
            values[: len(wrong)] = wrong[:size]
            ours, plain = np.zeros(4, np.float32), np.zeros(4, np.float32)
            bind_statistics(ours, values)()
            measure(plain, values)
            np.testing.assert_allclose(ours, plain, rtol=1e-6)
    nothing = np.full(4, np.nan, np.float32)
    measure(nothing, np.full(3, np.nan, np.float32))
    assert nothing.tolist() == [0, 0, 0, 3]


def test_recording_changes_no_bit(tmp_path):
    some, none = trained(tmp_path / "some", record=1), trained(tmp_path / "none", record=0)
    for name, values in some.model.weights().items():
        assert np.array_equal(values, none.model.weights()[name]), name
    assert read_record(tmp_path / "some" / FILE).steps.tolist() == [*range(1, 9)]
    assert not (tmp_path / "none" / FILE).exists()


def test_the_default_keeps_to_its_share_of_the_time(tmp_path, model):
    now = 0.0
    recording = StepRecording(tmp_path, model, clock=lambda: now)
    extra, recorded = 0.0, 0
    for step in range(1, 2001):
        if recording.due(step, last=step == 2000):
            record_one(recording, model, step)
            recorded, extra = recorded + 1, extra + 0.4
            recording.took(1.4)
        else:
            recording.took(1.0)
    assert 0.8 * COST < extra / 2000 < 1.1 * COST
    assert recording._lines.steps[:6] == [1, 2, 4, 8, 16, 32]
    assert recording._lines.steps[-1] == 2000


def test_a_full_record_is_thinned_and_goes_on_half_as_often(tmp_path, model):
    recording = StepRecording(tmp_path, model, 1, most=130_000)
    steps = 200
    for step in range(1, steps + 1):
        if recording.due(step, last=False):
            record_one(recording, model, step)
            recording.write(now=True)
        assert not (tmp_path / FILE).exists() or (tmp_path / FILE).stat().st_size <= 130_000
    found = read_record(tmp_path / FILE)
    assert found.steps[0] == 1
    assert found.steps[-1] >= steps - 8
    assert len(found.rows) > 20
    assert found.header.every == 8
    assert all(np.diff(found.steps)[-3:] == 8)


def test_thinned_lines_leave_the_file_too(tmp_path):
    lines = Lines(tmp_path / "lines")
    for step in range(1, 5):
        lines.add(step, b"%d\n" % step)
    lines.write(b"head\n")
    lines.thin(lambda step: step % 2 == 0)
    lines.add(6, b"6\n")
    lines.write(b"head\n")
    assert (tmp_path / "lines").read_bytes() == b"head\n2\n4\n6\n"
    assert (lines.steps, lines.size) == ([2, 4, 6], 6)


def test_a_row_waits_a_moment_for_the_next(tmp_path, model):
    now = 0.0
    recording = StepRecording(tmp_path, model, 1, clock=lambda: now)
    record_one(recording, model)
    recording.write()
    assert not (tmp_path / FILE).exists()
    now = PAUSE
    recording.write()
    assert len(read_record(tmp_path / FILE).rows) == 1


def test_what_did_not_reach_the_disk_is_written_later(tmp_path, model, monkeypatch):
    recording = StepRecording(tmp_path, model, 1)
    record_one(recording, model)
    with monkeypatch.context() as broken:
        broken.setattr(disk, "perform", full_at(os.write))
        with pytest.raises(UnwritableError, match=r"cannot record step 1 in .*: No space left"):
            recording.write(now=True)
    record_one(recording, model, 2)
    recording.write(now=True)
    assert read_record(tmp_path / FILE).steps.tolist() == [1, 2]


def test_resumed_runs_go_on_with_their_record(tmp_path):
    whole = trained(tmp_path / "whole", record=1)
    trained(tmp_path / "cut", record=1, stop=6)
    path = tmp_path / "cut" / FILE
    last = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:  # what a kill may leave: lines beyond the checkpoint, and half of one
        file.write(last.replace(b'"step": 6', b'"step": 7') + last[: len(last) // 2])
    finish(resume(tmp_path / "cut", {}, {}))
    assert path.read_bytes() == (tmp_path / "whole" / FILE).read_bytes()
    assert whole.trainer.step == 8


@pytest.mark.parametrize("fault", ["another listing", "damaged"])
def test_a_record_that_cannot_go_on_is_laid_aside(tmp_path, fault):
    trained(tmp_path / "run", record=1, stop=4)
    path = tmp_path / "run" / FILE
    if fault == "damaged":
        path.write_bytes(b"not a record\n" + b"\0" * 100)
    else:
        head, _, rows = path.read_bytes().partition(b"\n")
        said = json.loads(head)
        said["calls"][3]["op"] = "linear_of_yesterday"
        path.write_bytes(json.dumps(said).encode() + b"\n" + rows)
    before = path.read_bytes()
    session = resume(tmp_path / "run", {}, {})
    assert any("It is record-001.jsonl now" in message for message in session.messages)
    finish(session)
    assert (tmp_path / "run" / "record-001.jsonl").read_bytes() == before
    assert read_record(path).steps.tolist() == [5, 6, 7, 8]


def test_a_record_can_be_read_while_it_grows(tmp_path, model):
    recording = StepRecording(tmp_path, model, 1)
    for step in range(1, 5):
        record_one(recording, model, step)
        recording.write(now=True)
        assert read_record(tmp_path / FILE).steps.tolist() == [*range(1, step + 1)]


def test_torn_and_senseless_lines_are_left_out(tmp_path, model):
    recording = StepRecording(tmp_path, model, 1)
    for step in range(1, 5):
        record_one(recording, model, step)
    recording.write(now=True)
    path = tmp_path / FILE
    *before, last = path.read_bytes().splitlines(keepends=True)
    for torn in (last[:-1], last[: len(last) // 2], b"{\n", b"[" * 100_000 + b"\n", b"\0" * 50 + b"\n", b"\xff\n"):
        path.write_bytes(b"".join(before) + torn)
        assert read_record(path).steps.tolist() == [1, 2, 3]
    good = json.loads(last)
    wrong = [{"step": 3}, {"step": 4.0}, {"step": -4}, {"step": 1 << 60}, {"step": None}, {"loss": "high"}]
    wrong += [{"values": good["values"][1:]}, {"values": [good["values"]]}, {"values": 3}, {"values": {}}]
    wrong += [{"values": ["x", *good["values"][1:]]}, {"values": [10**400, *good["values"][1:]]}]
    for changed in wrong:
        path.write_bytes(b"".join(before) + json.dumps(good | changed).encode() + b"\n" + last)
        assert read_record(path).steps.tolist() == [1, 2, 3], changed
    path.write_bytes(b"".join(before) + json.dumps(good | {"loss": None}).encode() + b"\n")
    assert np.isnan(read_record(path).rows[3, LEAD.index("loss")])


def test_heads_that_are_none_are_refused(tmp_path, model):
    path = tmp_path / FILE
    good = json.loads(header_of(model.program).encoded())
    wrong: list[Any] = [
        [],
        {},
        {"format": 1},
        good | {"every": 0},
        good | {"chosen": -1},
        good | {"results": [[0, 99]]},
    ]
    wrong += [good | {"results": [[10**6, 0]]}, good | {"calls": [{}]}, good | {"sources": {"a": 1}}]
    wrong += [good | {"chosen": -1}, good | {"branches": None}, good | {"branches": [{}]}]
    wrong += [good | {"branches": [{"call": 9999, "direction": "forward", "name": "x"}]}]
    wrong += [good | {"branches": [{"call": 1, "direction": "up", "name": "x"}]}, good | {"measured": []}]
    wrong += [good | {"results": [[0, -1]]}, good | {"results": [[0]]}, good | {"statistics": []}]
    changed = json.loads(json.dumps(good))
    changed["calls"][1]["results"][0]["shape"] = ["x"]
    wrong.append(changed)
    for said in wrong:
        path.write_bytes(json.dumps(said).encode() + b"\n")
        with pytest.raises(TapelessError, match="not the head of a record"):
            read_record(path)
    path.write_bytes(json.dumps(good | {"format": 2}).encode() + b"\n")
    with pytest.raises(TapelessError, match="has format 2, and this version reads 1"):
        read_record(path)
    path.write_bytes(b"")
    with pytest.raises(TapelessError, match="ends before its first step"):
        read_record(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TapelessError, match="a pipe"):
        read_record(path)


def test_the_head_tells_the_source_and_no_folder(model):
    header = header_of(model.program)
    assert any("p.linear.backward(" in text and text.rstrip().endswith(")") for text in header.sources.values())
    assert str(Path.home()) not in header.encoded().decode()
    assert "/" not in "".join(call["source"] for call in header.calls)


def test_what_leaves_a_section_and_what_its_weights_get(model):
    header = header_of(model.program)
    leaving = {
        section: header.calls[header.results[index][0]]["results"][header.results[index][1]]["buffer"]
        for section, index in flow(header).items()
    }
    assert leaving == {"head": "dstream", "blocks.1": "blocks.1.dx", "blocks.0": "blocks.0.dsum1"}
    gradients = weight_gradients(header)
    named = [
        header.calls[header.results[index][0]]["results"][header.results[index][1]]["buffer"]
        for indices in gradients.values()
        for index in indices
    ]
    assert len(named) == len(set(named))
    assert set(gradients) == {"head", "blocks.1", "blocks.0", "embedding"}


def test_spikes_survive_being_drawn_together():
    rows = np.ones((1000, 2), np.float32)
    rows[777, 1], rows[3, 0] = 50.0, np.nan
    starts, low, high = min_max(rows, 10)
    assert len(starts) == 10
    assert high[7, 1] == 50
    assert low.min() == 1
    assert np.isfinite(low).all()
    assert min_max(rows, 1000)[1] is rows


def test_a_record_of_less_than_nothing_is_refused():
    with pytest.raises(TapelessError, match="record must be a number of updates, or 0 for no record, not -3"):
        Settings(record=-3).validate()


@pytest.mark.parametrize(("rate", "seed", "backend"), [(0.05, 0, "cpu"), (0.5, 1, "cpu"), (0.2, 2, "reference")])
def test_the_steps_before_a_training_breaks_are_in_its_record(tmp_path, rate, seed, backend, monkeypatch):
    """From step 100 on the rate grows; nothing is recorded there, and the explosion can be seen all the same."""
    fields = {**FIELDS, "optimizer": "sgd", "placement": "pre"}
    how = {**SETTINGS, "lr": rate}
    request = Request("ops-102k", fields, Settings(steps=400, seed=seed, record=128, backend=backend, **how))
    session = start(request, tmp_path / "run")
    trainer = session.trainer
    plain = trainer.schedule.at
    growing = SimpleNamespace(at=lambda number: plain(number) * (1 if number < 100 else 1.4 ** (number - 99)))
    monkeypatch.setattr(trainer, "schedule", growing)
    with pytest.raises(NonFiniteError):
        session.train()
    last = trainer.step + 1
    assert last % 128 > 16  # no step that was recorded anyway
    record = read_record(tmp_path / "run" / FILE)
    assert record.steps[-8:].tolist() == list(range(last - 7, last + 1))
    assert np.isfinite(record.rows[-8:-1, 2]).all()
    numbers = record.rows[:, len(LEAD) : record.header.first_branch].reshape(len(record.rows), -1, len(STATISTICS))
    assert numbers[-1, :, 3].any() or numbers[-1, :, 2].max() > 1e9  # what broke, in the line of the step that broke
    norms = record.rows[-8:-1, LEAD.index("gradient norm")]
    assert norms.max() > 2 * norms.min()


def test_steps_that_were_only_watched_stay_out_of_the_record(tmp_path, model):
    recording = StepRecording(tmp_path, model, 100)
    for step in range(1, 120):
        recording.watch(step, 1.0, 9.0 if step == 60 else 1.0)
        assert recording.due(step + 1, False) == (60 <= step < 76 or step == 99), step
        if recording.due(step + 1, False):
            record_one(recording, model, step + 1)
    recording.write(now=True)
    assert read_record(recording.path).steps.tolist() == [100]
    recording.broke(121, 1e-3, lambda: model.walk_step(*batch(model), lr=1e-3))
    recording.write(now=True)
    assert read_record(recording.path).steps.tolist() == [71, 72, 73, 74, 75, 76, 100, 121]
