"""The loop: accumulation, learning rates, evaluation, early ends, and what is caught before it does harm."""

import json
import os
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import pytest
import torch

from tapeless import Model
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.files import disk
from tapeless.files.disk import UnwritableError
from tapeless.tasks.task import Measured, Task
from tapeless.train import checkpoint
from tapeless.train.loop import Evaluated, Finished, Logged, SaveDue, Spiked, Step, Trainer, train
from tapeless.train.metrics import Recorder, read_metrics
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.files.full_disk import full_at
from tests.train.following import follow
from tests.train.test_resume import fingerprint

FIELDS: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2, "vocab": 11, "context": 6}


class Given(Task):
    """A task whose batches, and whose measurements, are given."""

    def __init__(self, batches, measured=()):
        self.given, self.measured = batches, list(measured)

    def batches(self, batch):
        given = self.given

        class Stream:
            epoch, steps_per_epoch, at = 0, len(given), 0

            def __next__(self):
                self.at += 1
                return given[(self.at - 1) % len(given)]

            def state(self):
                return {"at": self.at}

            def restore(self, state):
                self.at = state["at"]

        return Stream()

    def evaluate(self, model, batches):
        return Measured(self.measured.pop(0) if self.measured else 1.0)


def random_batches(rng, count, batch):
    """Ignored targets are spread unevenly: of every four batches one has no target, one nearly none."""
    made = []
    for number in range(count):
        tokens, targets = rng.integers(0, 11, (batch, 6)), rng.integers(0, 11, (batch, 6))
        targets[:, 1:][rng.random((batch, 5)) < (0.9, 0.0, 1.0, 0.4)[number % 4]] = -1
        targets[:, 0] = -1 if number % 4 == 2 else 5
        made.append((tokens, targets))
    return made


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["gpt2-4x256", "cllm"])
def test_accumulation_is_the_big_batch(name, backend):
    batches = random_batches(np.random.default_rng(0), 8, 2)
    big = [tuple(np.concatenate(part) for part in zip(*batches[i : i + 4], strict=True)) for i in (0, 4)]
    settings = Settings(steps=6, lr=1e-2, clip=0.1, schedule="linear")

    def trained(batch, accumulate, given):
        model = Model(name, batch=batch, time=6, backend=backend, optimizer="adamw", seed=1, **FIELDS)
        trainer = Trainer(model, Given(given), replace(settings, accumulate=accumulate))
        steps = [event for event in follow(trainer) if isinstance(event, Step)]
        return model, steps

    small, small_steps = trained(2, 4, batches)
    whole, whole_steps = trained(8, 1, big)
    tolerance = 1e-12 if backend == "reference" else 2e-5
    for one, other in zip(small_steps, whole_steps, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=tolerance)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=tolerance)
        assert one.lr == other.lr
    for key, weight in whole.params.items():
        assert np.abs(small.params[key] - weight).max() <= tolerance * max(1, np.abs(weight).max()), key


def test_accumulation_agrees_with_torch():
    """Four batches with unevenly ignored targets, summed as torch would sum them, to 1e-12."""
    batches = random_batches(np.random.default_rng(3), 4, 2)
    model = Model("gpt2-4x256", batch=2, time=6, backend="reference", optimizer="sgd", **FIELDS)
    trainer = Trainer(model, Given(batches), Settings(steps=1, lr=0.1, accumulate=4))
    from tests.oracles import leaves, torch_loss_and_logits

    params = leaves(model.params)
    count = sum(int((targets >= 0).sum()) for _, targets in batches)
    for tokens, targets in batches:
        here = int((targets >= 0).sum())
        if here:
            loss, _ = torch_loss_and_logits(model.config, params, tokens, targets)
            (loss * here / count).backward()
    torch.optim.SGD(params.values(), lr=0.1).step()
    for _ in range(4):
        trainer.batch()
    for key, weight in params.items():
        assert np.abs(model.params[key] - weight.detach().numpy()).max() <= 1e-12, key


def test_the_rate_follows_the_schedule():
    settings = Settings(steps=10, lr=0.5, schedule="step", every=3, rate=0.1, warmup=2)
    model = Model("gpt2-4x256", batch=2, time=6, backend="reference", **FIELDS)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2)), settings)
    rates = [event.lr for event in follow(trainer) if isinstance(event, Step)]
    assert rates == [trainer.schedule.at(step) for step in range(10)]
    assert rates[:3] == pytest.approx([0.5 / 3, 1 / 3, 0.5])
    assert rates[5] == pytest.approx(0.05)


def events_of(measured, **changes):
    model = Model("gpt2-4x256", batch=2, time=6, backend="reference", **FIELDS)
    settings = replace(Settings(steps=10, lr=1e-3, eval_every=1, save_every=4, log_every=5), **changes)
    return follow(Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2), measured), settings))


def test_it_stops_early_and_says_why():
    events = events_of([3.0, 2.0, 2.1, 2.2, 2.3, 1.0], patience=3)
    assert [event.number for event in events if isinstance(event, Step)] == [1, 2, 3, 4, 5]
    assert isinstance(events[-1], Finished)
    assert "3 evaluations were no better than 2.0000" in events[-1].reason
    assert [event.best for event in events if isinstance(event, Evaluated)] == [True, True, False, False, False]


def test_an_evaluation_that_is_not_finite_is_never_the_best():
    events = events_of([np.nan, np.inf, 2.0, np.nan, 1.0], steps=5)
    assert [event.best for event in events if isinstance(event, Evaluated)] == [False, False, True, False, True]
    early = events_of([np.nan] * 5, patience=2)[-1]
    assert early.reason == "stopped early: 2 evaluations were not finite"


def test_what_is_due_when():
    events = events_of([5.0] * 10, eval_every=4)
    at, step = [], 0
    for event in events:
        step = event.number if isinstance(event, Step) else step
        if isinstance(event, SaveDue | Evaluated | Logged):
            at.append((type(event).__name__, step))
    assert at == [
        ("Logged", 1),
        ("Evaluated", 4),
        ("SaveDue", 4),
        ("Logged", 5),
        ("Evaluated", 8),
        ("SaveDue", 8),
        ("Logged", 10),
        ("Evaluated", 10),
        ("SaveDue", 10),
    ]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nan_is_caught_before_any_weight_changes(backend):
    model = Model("gpt2-4x256", batch=2, time=6, backend=backend, **FIELDS)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2)), Settings(steps=9, accumulate=2))
    for _ in range(4):
        trainer.batch()
    model.params["blocks.0.mlp.up.weight"][2, 3] = np.inf
    before = {name: weight.copy() for name, weight in model.params.items()}
    moments = {name: moment.copy() for name, moment in model.state.items()}
    with pytest.raises(NonFiniteError, match=r"update 3 was stopped: .*blocks\.0\.mlp\.up\.weight"):
        trainer.batch()
    assert all(np.array_equal(model.params[name], weight) for name, weight in before.items())
    assert all(np.array_equal(model.state[name], moment) for name, moment in moments.items())
    assert (trainer.step, trainer.added, model.steps) == (2, 0, 2)
    assert trainer.state()["data"] == {"at": 4}  # the batch that showed it comes again


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_no_activation_swallows_nan(activation, backend):
    fields = FIELDS | {"activation": activation}
    model = Model("gpt2-4x256", batch=2, time=6, backend=backend, **fields)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2)), Settings(steps=9))
    trainer.batch()
    model.params["blocks.0.mlp.up.bias"][3] = np.nan
    with pytest.raises(NonFiniteError, match=r"blocks\.0\.mlp\.up\.bias"):
        trainer.batch()


def test_gradients_that_overflow_are_caught_where_they_are_added_up():
    """Each batch is finite, and so is the loss; the square of the gradient is not."""
    model = Model("gpt2-4x256", batch=2, time=6, backend="cpu", optimizer="adam", **FIELDS)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2)), Settings(steps=9))
    trainer.batch()
    before = {name: weight.copy() for name, weight in model.params.items()}
    last = [bound for call, bound in model.engine.bound if call.phase == "backward"][-1]
    last.append(lambda: model.grads["norm.weight"].__setitem__(0, 1e30))
    model.engine._captured.clear()
    with pytest.raises(NonFiniteError, match=r"norm of 1e\+30.*No batch of the update shows it by itself"):
        trainer.batch()
    assert all(np.array_equal(model.params[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_an_infinite_loss_is_caught_though_its_gradient_is_finite(backend):
    """A distance whose square is infinite has a gradient that is not, and that clipping even makes small."""
    fields = FIELDS | {"loss": "squared_error"}
    model = Model("gpt2-4x256", batch=2, time=6, backend=backend, optimizer="sgd", **fields)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 2, 2)), Settings(steps=9, clip=1.0))
    trainer.batch()
    model.params["tokens.weight"][...] *= 1e22 if backend == "cpu" else 1e156
    before = {name: weight.copy() for name, weight in model.params.items()}
    with pytest.raises(NonFiniteError, match=r"update 2 was stopped: the loss is inf\. The first call"):
        trainer.batch()
    assert all(np.array_equal(model.params[name], weight) for name, weight in before.items())
    assert (trainer.step, model.steps) == (1, 1)


def test_the_batches_of_an_update_but_the_last_only_add():
    """One list a step: the last batch and the update are one call of the model."""
    model = Model("gpt2-4x256", batch=2, time=6, backend="reference", **FIELDS)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 6, 2)), Settings(steps=2, accumulate=3))
    made = []

    def noted(right):
        def act(*arguments, **named):
            made.append(right.__name__)
            return right(*arguments, **named)

        return act

    for name in ("forward_backward", "step", "update"):
        setattr(model, name, noted(getattr(model, name)))
    for _ in range(6):
        trainer.batch()
    assert made == 2 * ["forward_backward", "forward_backward", "step"]


def test_a_spike_is_reported_with_the_norms_of_the_layers():
    model = Model("gpt2-4x256", batch=2, time=6, backend="reference", **FIELDS)
    trainer = Trainer(model, Given(random_batches(np.random.default_rng(0), 1, 2)), Settings(steps=70, lr=1e-3))

    def enlarged(event):
        if isinstance(event, Step) and event.number == 60:
            for weight in model.params.values():
                weight *= 30

    spikes = []
    train(trainer, enlarged, lambda event: spikes.append(event) if isinstance(event, Spiked) else None)
    assert [spike.step for spike in spikes] == [61]
    assert "blocks.0" in spikes[0].message
    assert "usually" in spikes[0].message


def request(**changes):
    settings = Settings(data="operations", batch=500, epochs=1.0, lr=1e-3, save_every=2, eval_every=4, **changes)
    return Request("ops-102k", {"layers": 1, "channels": 8, "heads": 2}, settings)


def test_the_best_and_the_last_checkpoints_stay(tmp_path, monkeypatch):
    session = start(request(keep=2), tmp_path / "run")
    found = lambda model, batches: Measured(1.0 if session.trainer.step == 4 else 2.0)  # noqa: E731
    monkeypatch.setattr(session.trainer.task, "evaluate", found)
    saved = [event for event in follow(session) if isinstance(event, SaveDue)]
    assert [(event.step, event.best) for event in saved] == [(2, False), (4, True), (6, False), (8, False)]
    kept = sorted(path.name for path in session.run.checkpoints.glob("step-*"))
    assert kept == ["step-00000004", "step-00000006", "step-00000008"]
    assert session.run.checkpoint("best")[0].step == 4
    assert session.run.checkpoint("newest")[0].step == 8


@pytest.mark.parametrize("what", ["checkpoints", "metrics"])
def test_a_full_disk_is_tried_again_and_loses_nothing(tmp_path, monkeypatch, what):
    """There is room again after two attempts: all is as if there had always been."""
    monkeypatch.setattr(disk, "PAUSES", (0.01, 0.01))
    session = start(request(), tmp_path / "run")
    refused: list[int | None] = []

    def full(operation, *arguments, **named):
        if operation is os.write and session.trainer.step == 4 and len(refused) < 2:
            refused.append(session.last_saved)
            raise OSError(28, "No space left on device")
        return right(operation, *arguments, **named)

    where, name = (checkpoint, "save") if what == "checkpoints" else (Recorder, "write")
    right, write = disk.perform, getattr(where, name)

    def during(*arguments, **named):
        monkeypatch.setattr(disk, "perform", full)
        try:
            return write(*arguments, **named)
        finally:
            monkeypatch.setattr(disk, "perform", right)

    monkeypatch.setattr(where, name, during)
    session.train()
    assert refused == [2, 2]
    assert checkpoint.steps(session.run.checkpoints) == [4, 6, 8]
    assert [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "evaluation"] == [4, 8]


@pytest.mark.parametrize("operation", [os.write, os.fsync])
def test_a_disk_that_stays_full_ends_it_and_names_the_last_good_checkpoint(tmp_path, monkeypatch, operation):
    """The resumed run is, bit for bit, the one that never met it."""
    monkeypatch.setattr(disk, "PAUSES", (0.01, 0.01))
    whole = start(request(record=0), tmp_path / "whole")
    whole.train()
    session, right = start(request(record=0), tmp_path / "run"), disk.perform

    def full(performed, *arguments, **named):
        if performed is operation and session.trainer.step == 4:
            raise OSError(28, "No space left on device")
        return right(performed, *arguments, **named)

    with monkeypatch.context() as broken:
        broken.setattr(disk, "perform", full)
        good = tmp_path / "run" / "checkpoints" / "step-00000002"
        with pytest.raises(UnwritableError, match=rf"No space left on device\. The last good checkpoint is {good}"):
            session.train()
    assert session.trainer.step == 4
    again = resume(tmp_path / "run", {}, {})
    assert again.trainer.step == 2
    again.train()
    assert fingerprint(again.trainer) == fingerprint(whole.trainer)


def test_a_disk_without_room_for_a_first_checkpoint_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "PAUSES", ())
    session = start(request(record=0), tmp_path / "run")
    monkeypatch.setattr(disk, "perform", full_at(os.fsync))
    with pytest.raises(UnwritableError, match=r"No space left on device\. There is no checkpoint yet"):
        session.train()


def test_nan_that_an_evaluation_meets_first_is_saved_and_recorded(tmp_path):
    asked = request()
    session = start(replace(asked, settings=replace(asked.settings, eval_every=1)), tmp_path / "run")

    def spoil(event):  # as if the update had done it
        if isinstance(event, Step):
            session.model.params["blocks.0.mlp.up.bias"][0] = np.nan

    with pytest.raises(NonFiniteError, match="update 2 was stopped"):
        session.train(spoil)
    assert session.last_saved == 1
    *_, evaluated, stop = read_metrics(tmp_path / "run")
    assert (evaluated["kind"], evaluated["loss"], evaluated["best"]) == ("evaluation", None, False)
    assert (stop["kind"], stop["step"]) == ("stop", 1)


def test_nan_on_a_full_disk_tells_of_both(tmp_path, monkeypatch):
    session = start(request(), tmp_path / "run")
    monkeypatch.setattr(disk, "perform", full_at(os.write))
    monkeypatch.setattr(disk, "PAUSES", (0.01,))
    session.model.params["blocks.0.mlp.up.bias"][0] = np.nan
    with pytest.raises(NonFiniteError, match=r"(?s)update 1 was stopped: .*mlp\.up\.bias.*No space left on device"):
        session.train()


def test_a_session_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    whole = start(request(), tmp_path / "whole")
    whole.train()
    cut = start(request(), tmp_path / "cut")
    events = follow(cut, lambda: "enough" if cut.trainer.step == 3 else None)
    assert events[-1] == Finished("enough")
    assert cut.last_saved == 3
    again = resume(tmp_path / "cut", {}, {})
    assert again.trainer.step == 3
    again.train()
    for name, weight in whole.model.params.items():
        assert np.array_equal(again.model.params[name], weight)

    def evaluations(folder):
        return [(line["step"], line["loss"]) for line in read_metrics(folder) if line["kind"] == "evaluation"]

    assert evaluations(tmp_path / "whole") == evaluations(tmp_path / "cut")


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    session = start(request(), tmp_path / "run")
    session.train(stopping=lambda: "enough" if session.trainer.step == 4 else None)
    path = tmp_path / "run" / "checkpoints" / "step-00000004" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    again = resume(tmp_path / "run", {}, {})
    assert again.trainer.step == 2
    assert "step-00000004" in again.messages[0]
    assert all(line["step"] <= 2 for line in read_metrics(tmp_path / "run"))
    again.train()
    assert again.trainer.step == 8


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ({"layers": 2}, {}, "layers cannot be changed"),
        ({}, {"batch": 10}, "batch cannot be changed"),
        ({}, {"seed": 3}, "seed cannot be changed"),
        ({}, {"backend": "reference"}, "backend cannot be changed"),
        ({}, {"lr": -1.0}, "lr must be"),
        ({}, {"epochs": 0.1}, "has made 3 updates, more than the 1 that it is given now: give at least as many"),
    ],
)
def test_what_a_resumed_run_may_not_be_told(tmp_path, model, settings, message):
    session = start(request(), tmp_path / "run")
    session.train(stopping=lambda: "enough" if session.trainer.step == 3 else None)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(TapelessError, match=message):
        resume(tmp_path / "run", model, settings)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "kind"), [("checkpoints", "a file"), ("metrics.jsonl", "a link to nowhere"), ("metrics.jsonl", "a folder")]
)
def test_what_stands_in_the_way_of_records_is_found_before_the_training(name, kind, tmp_path):
    session = start(request(), tmp_path / "run")
    session.train(stopping=lambda: "enough")
    path = tmp_path / "run" / name
    path.rename(tmp_path / "aside")
    if kind == "a file":
        path.write_text("")
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TapelessError, match=rf"{name} is no .*move it out of the way"):
        resume(tmp_path / "run", {}, {})


def test_metrics_are_finite_and_complete(tmp_path):
    session = start(request(log_every=1), tmp_path / "run")
    session.train()
    lines = read_metrics(tmp_path / "run")
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 9))
    for line in steps:
        assert line["gradient_norm"] == pytest.approx(
            np.sqrt(sum(norm**2 for norm in line["gradient_norms"].values())), rel=1e-6
        )
        assert all(isfinite(ratio) and ratio > 0 for ratio in line["update_ratios"].values())
        assert set(line["update_ratios"]) == set(line["gradient_norms"]) == {"embedding", "blocks.0", "head"}
    evaluation = next(line for line in lines if line["kind"] == "evaluation")
    assert set(evaluation["dead_units"]) == {"blocks.0"}
    assert json.loads(json.dumps(lines)) == lines
