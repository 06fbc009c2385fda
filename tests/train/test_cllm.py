"""Prediction in embedding space: what its evaluations measure, that it learns, and that a collapse is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.model import Stepped
from tapeless.tasks.data.batches import evaluation_batches
from tapeless.tasks.data.tokens import TokenData, Tokens
from tapeless.tasks.operations import LENGTH, Operations
from tapeless.tasks.text import Text
from tapeless.train.doctor import Observation, diagnose
from tapeless.train.loop import Evaluated, Event, Trainer, train
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.train.following import follow

SMALL: dict[str, Any] = {"layers": 1, "channels": 16, "heads": 2, "context": 8}


def measured_one_by_one(model: Model, states, targets) -> tuple[float, float, float]:
    """Loss, accuracy and cross-entropy from the distances themselves, target by target."""
    table = model.params["tokens.weight"]
    losses, right, surprises = [], [], []
    for state, target in zip(states, targets, strict=True):
        distances = [float(((state - row) ** 2).sum()) for row in table]
        losses.append(distances[target] / model.config.channels)
        right.append(int(np.argmin(distances)) == target)
        surprises.append(distances[target] + np.log(sum(np.exp(-each) for each in distances)))
    return float(np.mean(losses)), float(np.mean(right)), float(np.mean(surprises))


def states_of(model: Model, inputs, targets):
    """What the loss compares with the embeddings, (B, T, channels)."""
    for call, values in model.trace(inputs, targets):
        if call.op == "squared_error":
            return values["x"].reshape(*inputs.shape, -1).copy()
    raise AssertionError


def some_text(length: int, vocab: int) -> Text:
    rng = np.random.default_rng(0)
    tokens = [Tokens([rng.integers(0, vocab, length)]) for _ in range(2)]
    return Text(TokenData(tokens[0], tokens[1], vocab, None, ""), time=8, seed=0)


def test_text_is_measured_by_distance():
    task = some_text(8 * 5 + 4, vocab=13)  # the last batch has windows, and positions, that count for nothing
    model = Model("cllm", batch=4, time=8, vocab=13, backend="reference", **SMALL)
    model.params["norm.weight"][...] = 0.5
    states, wanted, losses = [], [], []
    for inputs, targets in evaluation_batches(task.data.validation, 4, 8, 20):
        states.append(states_of(model, inputs, targets)[targets >= 0])
        wanted.append(targets[targets >= 0])
        losses += [model.loss(inputs, targets)] * len(wanted[-1])
    found = task.evaluate(model, 20)
    loss, accuracy, surprise = measured_one_by_one(model, np.concatenate(states), np.concatenate(wanted))
    assert len(losses) == 8 * 5 + 3
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert found.accuracy == accuracy
    assert 0 < accuracy < 1
    assert found.cross_entropy == pytest.approx(surprise, rel=1e-12)


def test_the_scores_of_one_batch_exist_at_a_time(monkeypatch):
    """And no more windows are read than were asked for."""
    task = some_text(8 * 100, vocab=13)
    model = Model("cllm", batch=2, time=8, vocab=13, **SMALL)
    asked, scores = [], model.logits

    def counted(inputs):
        asked.append(inputs.shape)
        return scores(inputs)

    monkeypatch.setattr(model, "logits", counted)
    task.evaluate(model, 3)
    assert asked == [(2, 8)] * 3


def test_cross_entropy_models_are_measured_as_before():
    task = some_text(8 * 5, vocab=13)
    model = Model("cllm", batch=2, time=8, vocab=13, loss="cross_entropy", **SMALL)
    found = task.evaluate(model, 3)
    assert (found.accuracy, found.cross_entropy) == (None, None)
    operations = Operations(replace(model.config, vocab=20), 0)
    model = Model("cllm", batch=2, time=8, vocab=20, loss="cross_entropy", **SMALL)
    assert operations.evaluate(model, 3).cross_entropy is None


def test_operations_are_measured_by_distance():
    model = Model("cllm", batch=1000, time=LENGTH, vocab=20, backend="reference", **SMALL)
    task = Operations(model.config, 0)
    held_out = task.validation
    targets = np.full((1000, LENGTH), -1)
    targets[:, -1] = held_out.answers
    states = states_of(model, held_out.tokens, targets)[:, -1]
    found = task.evaluate(model, 1)
    wanted = measured_one_by_one(model, states, held_out.answers)
    assert (found.loss, found.accuracy, found.cross_entropy) == pytest.approx(wanted, rel=1e-12)


def test_a_run_records_it(tmp_path):
    request = Request("cllm", SMALL, Settings(data="operations", steps=2, log_every=1))
    session = start(request, tmp_path / "run")
    events = [event for event in follow(session) if isinstance(event, Evaluated)]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    recorded = [line for line in lines if line["kind"] == "evaluation"]
    assert recorded[-1]["cross_entropy"] == pytest.approx(events[-1].measured.cross_entropy)
    assert recorded[-1]["accuracy"] == pytest.approx(events[-1].measured.accuracy)
    assert recorded[-1]["spread"] == pytest.approx(1.0, abs=0.05)


def test_states_start_at_the_size_of_the_embeddings():
    """Else the first thousand updates would go into shrinking the last norm. Two independent points of one size lie
    √2 spreads apart; here the state and its target are nearly independent."""
    model = Model("cllm", batch=32, time=LENGTH)
    tokens, targets = next(Operations(model.config, 0).batches(32))
    assert 1 < model.loss(tokens, targets) / model.params["tokens.weight"].var() < 3


def test_cllm_learns_the_operations():
    """`tapeless train cllm --data operations`: at least 99 % by nearest embedding, within its ten epochs."""
    settings = Settings(data="operations", eval_every=125).suited(Model("cllm").config)
    model = Model("cllm", batch=settings.batch or 1, time=LENGTH, optimizer=settings.optimizer("adam"), seed=0)
    found = []

    def judged(event: Event) -> None:
        if isinstance(event, Evaluated):
            found.append(event.measured.accuracy or 0.0)

    trainer = Trainer(model, Operations(model.config, 0), settings)
    train(trainer, judged, stopping=lambda: "learned" if max(found, default=0.0) >= 0.99 else None)
    assert max(found) >= 0.99


def test_cllm_learns_text():
    """A text whose next byte is certain: the nearest embedding is right everywhere but at the start of a window."""
    tokens = Tokens([np.resize(np.frombuffer(b"do not go gentle ", np.uint8), 4000)])
    task = Text(TokenData(tokens, tokens, 256, None, ""), time=16, seed=0)
    model = Model("cllm", batch=8, time=16, layers=2, channels=32, heads=4)
    before = task.evaluate(model, 5)
    trainer = Trainer(model, task, Settings(steps=150, lr=5e-3))
    found = [event.measured for event in follow(trainer) if isinstance(event, Evaluated)][-1]
    assert before.accuracy is not None
    assert before.accuracy < 0.2
    assert found.accuracy is not None
    assert found.accuracy > 0.85
    assert found.cross_entropy is not None
    assert before.cross_entropy is not None
    assert found.cross_entropy < before.cross_entropy - 1


class Leaky(Model):
    """Planted: the gradient also flows into the embedding that is aimed at."""

    def forward_backward(
        self, inputs: Any, targets: Any, *, accumulate: bool = False, count: float | None = None
    ) -> float:
        for call, values in self.trace(inputs, targets):
            if call.op == "squared_error":
                loss, dx = float(values["loss"][0]), values["dx"].reshape(*targets.shape, -1).copy()
        np.subtract.at(self.grads["tokens.weight"], targets, dx)
        return loss

    def step(self, inputs: Any, targets: Any, *, lr: float, clip: float | None = None, **options: Any) -> Stepped:
        self.forward_backward(inputs, targets, **options)
        self.prepare_update(lr, clip)
        return self._ran("clip", "update")


def judged(model: Model) -> Observation:
    """The doctor's word on a training with nothing to be learned from the inputs: only a collapse lowers the loss."""
    task = some_text(4000, vocab=13)
    lines = []
    for event in follow(Trainer(model, task, Settings(steps=200, lr=1e-2, eval_batches=2))):
        if isinstance(event, Evaluated):
            lines.append({"kind": "evaluation", "step": event.step, "spread": event.spread})
    return diagnose(lines)[0]


def test_the_doctor_names_a_collapse_and_only_a_collapse():
    fields = {"batch": 8, "time": 8, "vocab": 257, **SMALL}  # most words never occur, and must not hide it
    sick, well = judged(Leaky("cllm", **fields)), judged(Model("cllm", **fields))
    assert (sick.kind, sick.verdict) == ("collapse", "bad")
    assert sick.sentence.startswith("The embeddings collapse to one point")
    assert well.kind != "collapse"
