"""Training around the model: what a batch is, what the learning rate is, and that the loop does what one would write
down: add up the batches of an update, take the rate of its number, clip, update, and go on after a stop as if there had
been none."""

from __future__ import annotations

from collections.abc import Iterator
from math import cos, pi
from typing import Any, cast

import numpy as np

from tapeless.check.finding import Finding, difference
from tapeless.model import Model
from tapeless.models.config import Optimizer
from tapeless.ops.contract import Array
from tapeless.tasks.data.batches import Batches, evaluation_batches
from tapeless.tasks.data.tokens import Tokens
from tapeless.tasks.task import Measured, Task
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.find_rate import MemoryCheckpoint
from tapeless.train.loop import Trainer
from tapeless.train.schedules import NAMES, Schedule
from tapeless.train.settings import Settings
from tests.check.steps import PlainOptimizer, first_difference, small_batch, small_model

UPDATES, ACCUMULATE = 5, 2
# Adam divides a gradient by its own size, so where it should be 0 and is a rounding, ε decides what becomes of it.
OPTIMIZER = Optimizer("adamw", decay=0.1, eps=1e-3)
SETTINGS = Settings(steps=UPDATES, accumulate=ACCUMULATE, lr=0.03, schedule="cosine", warmup=2, floor=0.2, clip=0.5)


def check_training() -> Iterator[Finding]:
    for place, check in (
        ("schedule", _schedules),
        ("batches", _batches),
        ("loop", _loop),
        ("resume in loop", _resumed),
    ):
        try:
            for detail in check():
                yield Finding(place, "steps", detail)
        except Exception as error:  # a loop that cannot run is wrong, too
            yield Finding(place, "steps", f"raises {type(error).__name__}: {error}")


def plain_rate(schedule: Schedule, step: int) -> float:
    """The rate of an update, counted from 0: it rises by equal parts, the whole rate being update `warmup`."""
    s = schedule
    if step < s.warmup:
        return s.lr / (s.warmup + 1) * (step + 1)
    since, length = min(step, s.steps) - s.warmup, s.steps - s.warmup
    low = s.floor * s.lr
    rates: dict[str, float] = {
        "constant": s.lr,
        "step": s.lr * s.rate ** (since // s.every),
        "exponential": s.lr * s.rate ** (since / s.every),
        "cosine": low + (s.lr - low) * (cos(pi * since / length) + 1) / 2,
        "linear": s.lr + (low - s.lr) * since / length,
    }
    return rates[s.name]


def _schedules() -> Iterator[str]:
    for name in NAMES:
        for warmup in (0, 3):
            schedule = Schedule(name, lr=0.3, steps=11, warmup=warmup, floor=0.2, every=2, rate=0.5)
            for step in range(13):
                rate, true = schedule.at(step), plain_rate(schedule, step)
                if difference(np.array([rate]), np.array([true])):
                    yield f"{name}, warm-up {warmup}: the rate of update {step} is {rate!r}, not {true!r}"


def _batches() -> Iterator[str]:
    """The token that follows is the target, and every target stands in exactly one window."""
    text = np.random.default_rng(0).permutation(1000)[:61]
    follows = dict(zip(text[:-1].tolist(), text[1:].tolist(), strict=True))
    stream = Batches(Tokens([text[:17], text[17:]]), batch=2, time=5, seed=0)
    seen: list[int] = []
    for _ in range(stream.steps_per_epoch):
        inputs, targets = next(stream)
        seen += targets.reshape(-1).tolist()
        if [follows.get(token) for token in inputs.reshape(-1).tolist()] != targets.reshape(-1).tolist():
            yield "a training target is not the token that follows its input"
    if len(set(seen)) != len(seen):
        yield "a training target comes twice in one epoch"
    held: list[int] = []
    for inputs, targets in evaluation_batches(Tokens([text]), batch=2, time=7):
        used = targets.reshape(-1) >= 0
        held += targets.reshape(-1)[used].tolist()
        if any(
            follows.get(int(a)) != b for a, b in zip(inputs.reshape(-1)[used], targets.reshape(-1)[used], strict=True)
        ):
            yield "an evaluation target is not the token that follows its input"
    if held != text[1:].tolist():
        yield "an evaluation does not count every target once"


class _Fixed(Task):
    """A task with a few fixed batches that differ in how many targets they have; as a stream it starts over."""

    epoch, steps_per_epoch = 0, ACCUMULATE * UPDATES

    def __init__(self) -> None:
        self.given = [small_batch(2, seed, ignored=seed % 5) for seed in range(self.steps_per_epoch)]
        self.at = 0

    def batches(self, batch: int) -> _Fixed:
        return self

    def __next__(self) -> tuple[Array, Array]:
        self.at += 1
        return self.given[(self.at - 1) % len(self.given)]

    def state(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        self.at = state["at"]

    def evaluate(self, model: Model, batches: int) -> Measured:
        return Measured(0.0)


def _trainer(**fields: Any) -> Trainer:
    return Trainer(small_model(OPTIMIZER, **fields), _Fixed(), SETTINGS)


def _loop() -> Iterator[str]:
    """Beside the trainer: the batches of an update as one big batch, its gradient, its rate, the plain optimizer."""
    trainer, given = _trainer(), _Fixed().given
    big = small_model(None, batch=2 * ACCUMULATE)
    own = PlainOptimizer(OPTIMIZER, big.params, big.config)
    schedule = SETTINGS.learning_rate(UPDATES)
    for update in range(UPDATES):
        for name, weight in own.weights.items():
            big.params[name][...] = weight
        parts = given[update * ACCUMULATE :][:ACCUMULATE]
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        count = int((targets >= 0).sum())
        loss, rate = big.forward_backward(inputs, targets, count=count), plain_rate(schedule, update)
        own.update(big.grads, rate, SETTINGS.clip)
        done = [trainer.batch() for _ in range(ACCUMULATE)][-1]
        found = None if done is None else difference(np.array([done.loss, done.lr]), np.array([loss, rate]))
        found = found and f"loss and rate, {found}"
        found = "is not made" if done is None else found or first_difference(trainer.model.params, own.weights)
        if found:
            yield f"update {update + 1}: {found}"
            return


def _resumed() -> Iterator[str]:
    """Stopped in the middle of an update, and restored into a new trainer with other weights; what it drops at random
    goes on as well."""
    whole, first, second = (_trainer(dropout=0.3) for _ in range(3))
    stop, batches = 2 * ACCUMULATE + 1, UPDATES * ACCUMULATE
    for _ in range(batches):
        whole.batch()
    for _ in range(stop):
        first.batch()
    for weight in second.model.params.values():
        weight += 1
    second.restore(cast(Checkpoint, MemoryCheckpoint(first)))
    for _ in range(batches - stop):
        second.batch()
    found = first_difference(second.model.params, whole.model.params)
    if found:
        yield f"after stopping and going on, {found}"
