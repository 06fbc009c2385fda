"""The operations task: `Max(1,6,2)` → `6`. All 5,000 distinct expressions, 4,000 to train, 1,000 to validate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array
from tapeless.tasks.task import Measured

DIGITS = [str(digit) for digit in range(10)]
OPERATIONS: dict[str, Callable[[tuple[int, ...]], int]] = {
    "First": lambda digits: digits[0],
    "Second": lambda digits: digits[1],
    "Last": lambda digits: digits[2],
    "Max": max,
    "Min": min,
}
WORDS = ("pad", "end", *DIGITS, *OPERATIONS, "(", ")", ",")
LENGTH = 8  # Max ( 1 , 6 , 2 )
TRAINING = 4000
EVALUATED_AT_ONCE = 500


@dataclass(frozen=True)
class Split:
    """Expressions as token ids (N, 8), and the id of each answer (N)."""

    tokens: Array
    answers: Array

    def __len__(self) -> int:
        return len(self.tokens)


def all_expressions() -> Split:
    tokens, answers = [], []
    for name, operation in OPERATIONS.items():
        for digits in product(range(10), repeat=3):
            words = [name, "(", str(digits[0]), ",", str(digits[1]), ",", str(digits[2]), ")"]
            tokens.append([WORDS.index(word) for word in words])
            answers.append(WORDS.index(str(operation(digits))))
    return Split(np.array(tokens), np.array(answers))


def split(seed: int) -> tuple[Split, Split]:
    """Shuffled by seed and cut once, so that no expression is in both."""
    everything = all_expressions()
    order = np.random.default_rng(seed).permutation(len(everything))
    training, validation = order[:TRAINING], order[TRAINING:]
    return (
        Split(everything.tokens[training], everything.answers[training]),
        Split(everything.tokens[validation], everything.answers[validation]),
    )


def spell(tokens: Array) -> str:
    return "".join(WORDS[token] for token in tokens)


def check_fits(config: Architecture) -> None:
    """A model that can learn this task reads tokens, knows the words and holds an expression."""
    if config.features:
        raise TapelessError(
            f"this model reads features, and the operations task is made of tokens: "
            f"choose a preset that reads tokens, such as ops-102k."
        )
    if config.vocab < len(WORDS):
        raise TapelessError(f"the operations task has {len(WORDS)} words, so vocab={config.vocab} is too small.")
    if config.context < LENGTH:
        raise TapelessError(f"an expression has {LENGTH} tokens, so context={config.context} is too short.")


class Operations:
    """The task as a trainer sees it: batches to learn from, and a measure of what was learned."""

    tokenizer = None  # its words are single tokens

    def __init__(self, config: Architecture, seed: int) -> None:
        check_fits(config)
        self.config, self.seed = config, seed
        self.training, self.validation = split(seed)

    def batches(self, batch: int) -> OperationBatches:
        return OperationBatches(self.config, self.training, batch, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """Both splits whole: they are small."""
        train_loss, train_accuracy = evaluate(model, self.training)
        loss, accuracy, surprise = _means(model, self.validation)
        beside = surprise if model.config.loss == "squared_error" else None
        return Measured(loss, accuracy, train_loss, train_accuracy, beside)


class OperationBatches:
    """Endless, each epoch in an order of its own. A last, smaller batch would need a program of its own; the shuffle
    sees to it that no expression is left out for good."""

    def __init__(self, config: Architecture, examples: Split, batch: int, seed: int) -> None:
        if batch > len(examples):
            raise TapelessError(f"batch={batch} is more than the {len(examples):,} examples there are.")
        self.config, self.examples, self.batch, self.seed = config, examples, batch, seed
        self.steps_per_epoch = len(examples) // batch
        self.epoch, self.position = 0, 0
        self._order = self._shuffled()

    def _shuffled(self) -> Array:
        return np.random.default_rng([self.seed, 1, self.epoch]).permutation(len(self.examples))

    def __next__(self) -> tuple[Array, Array]:
        if self.position == self.steps_per_epoch:
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._shuffled()
        chosen = self._order[self.position * self.batch :][: self.batch]
        self.position += 1
        return self.examples.tokens[chosen], targets_for(self.config, self.examples.answers[chosen])

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        for name, most in (("epoch", None), ("position", self.steps_per_epoch)):
            value = state.get(name)
            if type(value) is not int or value < 0 or (most is not None and value > most):
                raise TapelessError(f"the position in the data is damaged: {name} is {repr(value)[:40]}.")
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._shuffled()


def targets_for(config: Architecture, answers: Array) -> Array:
    """The answer stands at the last position; every other target is −1."""
    if config.readout == "last":
        return answers
    targets = np.full((len(answers), LENGTH), -1)
    targets[:, -1] = answers
    return targets


def evaluate(model: Model, examples: Split) -> tuple[float, float]:
    """Mean loss and accuracy."""
    loss, accuracy, _ = _means(model, examples)
    return loss, accuracy


def _means(model: Model, examples: Split) -> tuple[float, float, float]:
    """Loss, accuracy and cross-entropy."""
    totals = np.zeros(3)
    for start in range(0, len(examples), EVALUATED_AT_ONCE):
        answers = examples.answers[start : start + EVALUATED_AT_ONCE]
        scores = final_scores(model, examples.tokens[start : start + EVALUATED_AT_ONCE])
        totals += score_totals(model.config, scores, answers)
    loss, accuracy, surprise = totals / len(examples)
    return float(loss), float(accuracy), float(surprise)


def final_scores(model: Model, tokens: Array) -> Array:
    scores = model.logits(tokens)
    return scores if scores.ndim == 2 else scores[:, -1]


def score_totals(config: Architecture, scores: Array, answers: Array) -> Array:
    """What scores (N, vocab) are worth, added up over N: the model's own loss, how many are right, and the
    cross-entropy of the softmax over the scores."""
    picked = scores[np.arange(len(scores)), answers]
    largest = scores.max(axis=1)
    surprise = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1)) - picked
    # The scores of a squared-error model are minus the squared distances, its loss is their mean over channels.
    losses = -picked / config.channels if config.loss == "squared_error" else surprise
    right = scores.argmax(axis=1) == answers
    return np.array([losses.sum(dtype=np.float64), right.sum(), surprise.sum(dtype=np.float64)])
