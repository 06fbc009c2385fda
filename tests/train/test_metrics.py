"""Norms, ratios and dead units beside direct computation; the metrics file through kills; event files read back."""

from __future__ import annotations

import builtins
import json
import os
import resource
from errno import ENOSPC
from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.check.configurations import Configuration, small
from tapeless.files import disk
from tapeless.files.disk import UnwritableError
from tapeless.files.growing import Growing
from tapeless.models.config import Optimizer
from tapeless.models.presets import PRESETS
from tapeless.train.metrics import (
    LARGEST,
    Phases,
    Recorder,
    dead_units,
    gradient_norms,
    read_metrics,
    update_ratios,
)
from tests.check.steps import by_section

OPTIMIZERS = {
    "sgd": "sgd",
    "momentum": Optimizer("momentum", momentum=0.7),
    "adam": "adam",
    "adamw": Optimizer("adamw", beta1=0.8, beta2=0.95, eps=1e-4, decay=0.3),
}


def made(preset: str = "gpt2-4x256", backend: str = "reference", **options: Any) -> tuple[Model, Any]:
    """A small model with nothing at its first value, and a source of batches."""
    configuration = Configuration(preset, preset, small(preset))
    fields = {**configuration.fields, **options}
    model = Model(preset, batch=configuration.batch, time=configuration.time, backend=backend, **fields)
    rng = np.random.default_rng(0)
    configuration.scramble(rng, model)
    return model, lambda: configuration.batch_of(rng, model)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_weight_belongs_to_the_section_that_uses_it(preset):
    model, batch = made(preset)
    used: dict[str, str] = {}
    for call, _ in model.trace(*batch()):
        for argument in call.reads:
            if argument.view.buffer.kind == "weight" and call.phase in ("forward", "backward"):
                used.setdefault(argument.view.buffer.name, call.section)
    assert used == {weight.name: weight.section for weight in model.program.weights}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradient_norms_by_layer(backend):
    model, batch = made(backend=backend, tied=False)
    model.forward_backward(*batch())
    norm = model.update(0.1)
    found = gradient_norms(model)
    assert list(found) == ["embedding", "blocks.0", "blocks.1", "head"]
    assert found == pytest.approx(by_section(model, model.grads), rel=1e-12)
    assert np.linalg.norm(list(found.values())) == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("backend", "tolerance"), [("reference", 1e-10), ("cpu", 1e-3)])
def test_update_ratios_are_the_real_difference(name, clip, backend, tolerance):
    model, batch = made(backend=backend, optimizer=OPTIMIZERS[name], tied=False)
    for step in range(5):
        model.forward_backward(*batch())
        before = {weight: array.copy() for weight, array in model.params.items()}
        norm = model.update(0.01 * (step + 1), clip=clip)
        assert clip is None or norm > clip  # else clipping was never tried
        difference = {weight: model.params[weight].astype(np.float64) - before[weight] for weight in before}
        moved, size = by_section(model, difference), by_section(model, before)
        assert update_ratios(model) == pytest.approx({k: moved[k] / size[k] for k in size}, rel=tolerance)


def test_a_long_section_is_measured_through_all_its_pieces():
    """More weights than a thread takes at once, and no whole number of them."""
    model, _ = made(backend="cpu", vocab=9001, channels=16, heads=2)
    rng = np.random.default_rng(1)
    inputs, targets = rng.integers(0, 9001, (2, model.batch, model.time))
    before = {weight: array.copy() for weight, array in model.params.items()}
    model.step(inputs, targets, lr=0.01)
    difference = {weight: model.params[weight].astype(np.float64) - before[weight] for weight in before}
    moved, size = by_section(model, difference), by_section(model, before)
    assert update_ratios(model) == pytest.approx({k: moved[k] / size[k] for k in size}, rel=1e-4)
    assert gradient_norms(model) == pytest.approx(by_section(model, model.grads), rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_weights_that_are_not_finite_have_no_ratio_and_nobody_is_warned(name):
    model, batch = made(optimizer=name)
    model.forward_backward(*batch())
    for arrays, value in ((model.params, -np.inf), (model.state, np.inf)):
        for array in arrays.values():
            array[...] = value
    with np.errstate(all="ignore"):  # as the trainer has it
        model.update(1e-3)
    assert not any(np.isfinite(ratio) for ratio in update_ratios(model).values())


def test_weights_that_are_all_zero_have_no_ratio():
    model, batch = made(optimizer="sgd", tied=False)
    model.params["head.weight"][...] = 0
    model.params["norm.weight"][...] = 0
    model.params["norm.bias"][...] = 1
    model.forward_backward(*batch())
    model.params["norm.bias"][...] = 0
    model.update(0.0)
    assert update_ratios(model)["head"] == float("inf")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("preset", ["ops-102k", "sunfish"])
def test_dead_units_are_counted_per_layer(preset, backend):
    model, batch = made(preset, backend)
    alive = dead_units(model, batch()[0])
    model.params["blocks.0.mlp.up.bias"][:3] = -100.0  # three of five
    model.params["blocks.1.mlp.up.bias"][...] = 100.0
    model.grads["blocks.0.norm1.weight"][...] = 7.0
    assert set(alive) == {"blocks.0", "blocks.1"}
    found = dead_units(model, np.concatenate([batch()[0] for _ in range(20)]))
    assert found == pytest.approx({"blocks.0": 0.6, "blocks.1": 0.0})
    assert (model.grads["blocks.0.norm1.weight"] == 7.0).all()  # gradients stay as they are


def test_a_unit_is_alive_if_any_batch_wakes_it():
    model, _ = made("ops-102k", channels=6, heads=2)
    halves = [np.full((2, 4), token) for token in (1, 5)]
    alone = [dead_units(model, half)["blocks.1"] for half in halves]
    together = dead_units(model, np.concatenate(halves))["blocks.1"]
    assert together < min(alone)


def test_dead_units_of_other_activations_and_of_half_a_batch():
    model, batch = made("cllm")
    assert dead_units(model, batch()[0]) == {}
    model, batch = made("ops-102k")
    for inputs in (batch()[0][:1], batch()[0][:0], 3):
        with pytest.raises(TapelessError, match="whole batches of 2"):
            dead_units(model, inputs)


def test_phases_share_the_time():
    clock = iter([0.0, 1.0, 4.0, 4.0, 6.0, 10.0, 10.0, 10.0, 15.0, 20.0, 20.0])
    phases = Phases(lambda: next(clock))
    with phases("data"):  # 1 to 4
        pass
    with phases("step"):  # 4 to 6
        pass
    wanted = {"data": 0.3, "step": 0.2, "evaluate": 0, "save": 0, "other": 0.5}
    assert phases.shares() == pytest.approx(wanted)
    with pytest.raises(ZeroDivisionError), phases("save"):  # 10 to 15, whatever happens inside
        raise ZeroDivisionError
    assert phases.shares()["save"] == pytest.approx(0.5)
    with pytest.raises(TapelessError, match="unknown phase 'dat': did you mean 'data'"), phases("dat"):
        pass


def test_lines_come_back_as_they_were_written(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.record("step", 10, loss=0.1, norms={"blocks.0": np.float32(0.5)}, count=np.int64(3))
    recorder.record(
        "stop", 11, reason="all done … ✓", loss=float("nan"), norms={"a": np.float32("inf"), "b": [-np.inf]}
    )
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text.splitlines()[0] == '{"kind": "step", "step": 10, "loss": 0.1, "norms": {"blocks.0": 0.5}, "count": 3}'
    assert "NaN" not in text
    assert "Infinity" not in text
    assert read_metrics(tmp_path)[1] == {
        "kind": "stop",
        "step": 11,
        "reason": "all done … ✓",
        "loss": None,
        "norms": {"a": None, "b": [None]},
    }


def test_a_kill_at_any_byte_costs_the_torn_line_alone(tmp_path):
    recorder = Recorder(tmp_path)
    for step in (1, 2, 3):
        recorder.record("step", step, note="ä" * step)
    path = tmp_path / "metrics.jsonl"
    content = path.read_bytes()
    ends = [number for number, byte in enumerate(content, 1) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end - 1 <= cut for end in ends)  # a line that lacks nothing but its end is whole
        assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3][:whole]
        Recorder(tmp_path).record("step", 9)
        assert [line["step"] for line in read_metrics(tmp_path)] == [*[1, 2, 3][:whole], 9]
        assert path.read_bytes().startswith(content[: ends[whole - 1]] if whole else b"{")


def test_cutting_forgets_what_came_after_a_step(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.cut_after(5)  # nothing there yet
    for step in (5, 6, 7):
        recorder.record("step", step)
        recorder.record("evaluation", step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')
    recorder.cut_after(6)
    assert [(line["kind"], line["step"]) for line in read_metrics(tmp_path)] == [
        ("step", 5),
        ("evaluation", 5),
        ("step", 6),
        ("evaluation", 6),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    recorder.record("step", 7)
    assert len(read_metrics(tmp_path)) == 5


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_leaves_the_lines_that_were_there(room, tmp_path):
    recorder = Recorder(tmp_path)
    recorder.record("step", 1, loss=0.5)
    path = tmp_path / "metrics.jsonl"
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
    try:
        with pytest.raises(TapelessError, match="cannot record step 2 in"):
            recorder.record("step", 2, loss=0.25)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    recorder.record("step", 3, loss=0.125)  # what could not be written before comes along
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def failing(monkeypatch, *operations, after=0):
    """These operations fail, the first of them once it has done a part of its work."""
    right = disk.perform
    written: list[int] = []

    def perform(operation, *arguments, **named):
        if operation not in operations:
            return right(operation, *arguments, **named)
        if operation is os.write and not written:
            written.append(1)
            return right(operation, arguments[0], arguments[1][:after])
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(disk, "perform", perform)


@pytest.mark.parametrize("operations", [(os.write,), (os.write, os.ftruncate), (os.open,)])
def test_half_a_line_never_stays(operations, tmp_path, monkeypatch):
    """Even where it can neither be finished nor taken back at once."""
    recorder = Recorder(tmp_path)
    recorder.record("step", 1, loss=0.5)
    with monkeypatch.context() as patch:
        failing(patch, *operations, after=7)
        for step in (2, 3):
            with pytest.raises(UnwritableError, match="cannot record step 2 in"):
                recorder.record("step", step, loss=0.25)
        assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    recorder.write()
    recorder.record("step", 4, loss=0.125)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 4


def test_metrics_that_are_no_regular_file_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    for attempt in (read_metrics, Recorder, lambda folder: Growing(folder / "metrics.jsonl").add(b"x")):
        with pytest.raises((TapelessError, OSError), match=r"no regular file|not a plain file|No such device"):
            attempt(tmp_path)


@pytest.mark.parametrize("operations", [(os.write,), (os.write, os.ftruncate)])
def test_event_files_on_a_full_disk_lose_nothing(operations, tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, tensorboard=True)
    recorder.record("step", 1, loss=1.0)
    recorder.note("step", 2, loss=2.0)
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "_lines", [])  # the metrics' line: only the event file is written
        failing(patch, *operations, after=5)
        with pytest.raises(UnwritableError, match=r"cannot write .*tfevents"):
            recorder.write()
    recorder.record("step", 3, loss=3.0)
    found = events_in(tmp_path / "tensorboard").Scalars("step/loss")
    assert [(each.step, each.value) for each in found] == [(1, 1.0), (2, 2.0), (3, 3.0)]


@pytest.mark.parametrize(
    "row",
    ["", "{", "[]", "3", '{"step": 1}', '{"kind": "step"}', '{"kind": "step", "step": "1"}', "\x00\x00", "[" * 9999],
)
def test_a_damaged_line_in_the_middle_is_named(row, tmp_path):
    good = json.dumps({"kind": "step", "step": 1})
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n{row}\n{good}\n")
    with pytest.raises(TapelessError, match=r"^line 2 of .*metrics.jsonl is not a line of metrics") as refused:
        read_metrics(tmp_path)
    assert len(str(refused.value)) < 300


def test_metrics_longer_than_any_run_has_are_not_read(tmp_path):
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(LARGEST + 1)  # of which the disk holds nothing
    with pytest.raises(TapelessError, match="is longer than 1,073,741,824 bytes"):
        read_metrics(tmp_path)


def test_a_folder_without_metrics(tmp_path):
    with pytest.raises(TapelessError, match="there are no metrics in"):
        read_metrics(tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(TapelessError, match="cannot read"):
        read_metrics(tmp_path)


def events_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_reads_the_event_files(tmp_path):
    from tensorboard.util.tensor_util import make_ndarray

    recorder = Recorder(tmp_path, tensorboard=True)
    recorder.record("step", 1, loss=2.5, norms={"blocks.0": np.float32(0.25)}, nothing=None)
    recorder.record("step", 2, loss=1.5, norms={"blocks.0": float("inf")})
    recorder.record("evaluation", 2, loss=1.75, best=True)
    recorder.record("stop", 2, reason="all done")
    found = events_in(tmp_path / "tensorboard")  # a kill now would lose nothing
    assert set(found.Tags()["scalars"]) == {"step/loss", "step/norms/blocks.0", "evaluation/loss", "evaluation/best"}
    assert [(each.step, each.value) for each in found.Scalars("step/loss")] == [(1, 2.5), (2, 1.5)]
    assert [each.value for each in found.Scalars("step/norms/blocks.0")] == [0.25, np.inf]
    assert found.SummaryMetadata("stop/reason").plugin_data.plugin_name == "text"
    assert make_ndarray(found.Tensors("stop/reason")[0].tensor_proto).tolist() == [b"all done"]


def test_tensorboard_forgets_with_the_file(tmp_path):
    recorder = Recorder(tmp_path, tensorboard=True)
    for step in (1, 2, 3):
        recorder.record("step", step, loss=float(step))
    recorder.cut_after(1)
    recorder.record("step", 2, loss=20.0)
    found = events_in(tmp_path / "tensorboard").Scalars("step/loss")
    assert [(each.step, each.value) for each in found] == [(1, 1.0), (2, 20.0)]


def test_without_tensorboard_the_extra_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TapelessError, match=r"pip install 'tapeless\[tensorboard\]'"):
        Recorder(tmp_path, tensorboard=True)
    assert not list(tmp_path.iterdir())
