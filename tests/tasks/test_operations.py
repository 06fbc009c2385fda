"""The operations task itself, and the promise that ops-102k learns it."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.tasks.operations import (
    LENGTH,
    WORDS,
    Operations,
    all_expressions,
    evaluate,
    final_scores,
    spell,
    split,
    targets_for,
)
from tapeless.train.loop import Evaluated, Event, Step, Trainer, train
from tapeless.train.settings import Settings
from tests.train.following import follow


def test_the_example_of_the_founding_document():
    everything = all_expressions()
    index = [spell(tokens) for tokens in everything.tokens].index("Max(1,6,2)")
    assert everything.tokens[index].tolist() == [15, 17, 3, 19, 8, 19, 4, 18]
    assert everything.answers[index] == 8


def test_every_expression_is_there_once_and_right():
    everything = all_expressions()
    spelled = [spell(tokens) for tokens in everything.tokens]
    assert len(set(spelled)) == 5000
    definition = {
        "First": lambda a, b, c: a,
        "Second": lambda a, b, c: b,
        "Last": lambda a, b, c: c,
        "Max": lambda a, b, c: max(a, b, c),
        "Min": lambda a, b, c: min(a, b, c),
    }
    for text, answer in zip(spelled, everything.answers, strict=True):
        name, digits = text.rstrip(")").split("(")
        assert WORDS[answer] == str(definition[name](*map(int, digits.split(","))))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_splits_share_nothing(seed):
    training, validation = split(seed)
    seen = {spell(tokens) for tokens in training.tokens}
    held_out = {spell(tokens) for tokens in validation.tokens}
    assert (len(seen), len(held_out)) == (4000, 1000)
    assert not seen & held_out


def test_the_split_follows_the_seed():
    assert (split(3)[0].tokens == split(3)[0].tokens).all()
    assert (split(3)[0].tokens != split(4)[0].tokens).any()


def trainer(seed: int, epochs: float, **fields: Any) -> Trainer:
    model = Model("ops-102k", batch=32, time=LENGTH, seed=seed, **fields)
    settings = Settings(data="operations", epochs=epochs, lr=1e-3, seed=seed)
    return Trainer(model, Operations(model.config, seed), settings)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ops_102k_learns_the_task_within_ten_epochs(seed):
    """Adam, learning rate 0.001, batch 32: at least 99.5 % of the held-out expressions."""
    found = []

    def judged(event: Event) -> None:
        if isinstance(event, Evaluated):
            found.append(event.measured.accuracy or 0.0)

    train(trainer(seed, 10.0), judged, stopping=lambda: "learned" if max(found, default=0.0) >= 0.995 else None)
    assert max(found) >= 0.995


def test_training_is_the_same_for_the_same_seed():
    def losses() -> list[float]:
        events = follow(trainer(5, 1.0, layers=1, channels=16))
        return [event.loss for event in events if isinstance(event, Step)]

    assert losses() == losses()
    assert len(losses()) == 125


def test_an_epoch_holds_every_expression_once():
    batches = Operations(Model("ops-102k", time=LENGTH).config, 3).batches(32)
    seen = np.concatenate([next(batches)[0] for _ in range(batches.steps_per_epoch)])
    assert len(np.unique(seen, axis=0)) == 125 * 32
    assert batches.epoch == 1
    again = np.concatenate([next(batches)[0] for _ in range(batches.steps_per_epoch)])
    assert batches.epoch == 2
    assert (seen != again).any()
    assert sorted(map(tuple, seen)) == sorted(map(tuple, again))


@pytest.mark.parametrize("name", ["ops-102k", "cllm"])
def test_evaluation_agrees_with_the_loss_the_model_is_trained_by(name):
    fields: dict[str, Any] = {"channels": 16, "layers": 1, "vocab": 20, "context": LENGTH}
    model = Model(name, batch=40, time=LENGTH, backend="reference", **fields)
    _, validation = split(0)
    rows = slice(0, 40)
    part = type(validation)(validation.tokens[rows], validation.answers[rows])
    loss, accuracy = evaluate(model, part)
    assert loss == pytest.approx(model.loss(part.tokens, targets_for(model.config, part.answers)), rel=1e-12)
    assert accuracy == np.mean(final_scores(model, part.tokens).argmax(axis=1) == part.answers)
