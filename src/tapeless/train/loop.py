"""Training as a plain loop that yields what happened: the caller shows it, stores it, or stops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.train.operations import Split

EVALUATED_AT_ONCE = 500


@dataclass(frozen=True)
class Settings:
    epochs: int = 10
    batch: int = 32
    lr: float = 1e-3
    clip: float | None = None
    seed: int = 0

    def validate(self, examples: int) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise TapelessError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.batch > examples:
            raise TapelessError(f"batch={self.batch} is more than the {examples:,} examples there are.")
        if not 0 < self.lr < float("inf"):
            raise TapelessError(f"lr must be a finite number above 0, not {self.lr}.")
        if self.clip is not None and not self.clip > 0:
            raise TapelessError(f"clip must be above 0, not {self.clip}.")


@dataclass(frozen=True)
class Step:
    """One update."""

    number: int
    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class Epoch:
    """The state of things after an epoch, measured on the whole of both splits."""

    number: int
    steps: int
    train_loss: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float
    gradient_norm: float  # mean over the epoch's steps


def train(model: Model, training: Split, validation: Split, settings: Settings) -> Iterator[Step | Epoch]:
    settings.validate(len(training))
    rng = np.random.default_rng([settings.seed, 1])  # the weights were drawn from the seed alone
    number = 0
    for epoch in range(1, settings.epochs + 1):
        order = rng.permutation(len(training))
        norms = []
        # A last, smaller batch would need a program of its own; the shuffle sees to it that none is left out
        # for good.
        for start in range(0, len(order) - settings.batch + 1, settings.batch):
            chosen = order[start : start + settings.batch]
            loss = model.forward_backward(training.tokens[chosen], targets_for(model, training.answers[chosen]))
            norms.append(model.update(settings.lr, clip=settings.clip))
            number += 1
            yield Step(number, loss, norms[-1])
        train_loss, train_accuracy = evaluate(model, training)
        val_loss, val_accuracy = evaluate(model, validation)
        mean_norm = float(np.mean(norms))
        yield Epoch(epoch, number, train_loss, train_accuracy, val_loss, val_accuracy, mean_norm)


def targets_for(model: Model, answers: Array) -> Array:
    """The answer stands at the last position; every other target is −1."""
    if model.config.readout == "last":
        return answers
    targets = np.full((len(answers), model.time), -1)
    targets[:, -1] = answers
    return targets


def evaluate(model: Model, split: Split) -> tuple[float, float]:
    """Mean loss and accuracy."""
    losses, right = 0.0, 0
    for start in range(0, len(split), EVALUATED_AT_ONCE):
        answers = split.answers[start : start + EVALUATED_AT_ONCE]
        scores = final_scores(model, split.tokens[start : start + EVALUATED_AT_ONCE])
        losses += float(_losses(model, scores, answers).sum())
        right += int((scores.argmax(axis=1) == answers).sum())
    return losses / len(split), right / len(split)


def final_scores(model: Model, tokens: Array) -> Array:
    scores = model.logits(tokens)
    return scores if scores.ndim == 2 else scores[:, -1]


def _losses(model: Model, scores: Array, answers: Array) -> Array:
    picked = scores[np.arange(len(scores)), answers]
    if model.config.loss == "squared_error":
        return -picked / model.config.channels  # the scores are minus the squared distances
    largest = scores.max(axis=1)
    logsumexp: Array = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
    return logsumexp - picked
