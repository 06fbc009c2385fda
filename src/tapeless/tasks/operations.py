"""The operations task: `Max(1,6,2)` → `6`. All 5,000 distinct expressions, 4,000 to train, 1,000 to validate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from tapeless.errors import TapelessError
from tapeless.generate import check_sampling, checked_scores, choose
from tapeless.model import Model
from tapeless.models.config import TRAINED_DECAY, Architecture
from tapeless.ops.contract import Array
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.epochs import Epochs
from tapeless.tasks.task import Ended, Farewell, Measured, Task, TaskKind
from tapeless.tasks.writing import Sampling, Writing

DIGITS = [str(digit) for digit in range(10)]
OPERATIONS: dict[str, Callable[[tuple[int, ...]], int]] = {
    "First": lambda digits: digits[0],
    "Second": lambda digits: digits[1],
    "Last": lambda digits: digits[2],
    "Max": max,
    "Min": min,
}
WORDS = ("pad", "end", *DIGITS, *OPERATIONS, "(", ")", ",")
SPELLED = WORDS[2:]  # that expressions are written with
LENGTH = 8  # Max ( 1 , 6 , 2 )
EXPECTED = f"write one such as Max(1,6,2), of {', '.join(OPERATIONS)} and three digits"
TRAINING = 4000
EVALUATED_AT_ONCE = 500


@dataclass(frozen=True)
class Expressions:
    """Expressions as token ids (N, 8), and the id of each answer (N)."""

    tokens: Array
    answers: Array

    def __len__(self) -> int:
        return len(self.tokens)


def all_expressions() -> Expressions:
    tokens, answers = _everything()
    return Expressions(np.array(tokens), np.array(answers))


def _everything() -> tuple[list[tuple[int, ...]], list[int]]:
    tokens, answers = [], []
    for name, operation in OPERATIONS.items():
        for digits in product(range(10), repeat=3):
            words = [name, "(", str(digits[0]), ",", str(digits[1]), ",", str(digits[2]), ")"]
            tokens.append(tuple(WORDS.index(word) for word in words))
            answers.append(WORDS.index(str(operation(digits))))
    return tokens, answers


def split(seed: int) -> tuple[Expressions, Expressions]:
    """Shuffled by seed and cut once, so that no expression is in both."""
    everything = all_expressions()
    shuffled = order(random_bits(seed), len(everything))
    training, validation = shuffled[:TRAINING], shuffled[TRAINING:]
    return (
        Expressions(everything.tokens[training], everything.answers[training]),
        Expressions(everything.tokens[validation], everything.answers[validation]),
    )


def spell(tokens: Array) -> str:
    return "".join(WORDS[token] for token in tokens)


def check_fits(config: Architecture) -> None:
    """A model that can learn this task reads tokens, knows the words and holds an expression."""
    if config.features:
        raise TapelessError(
            "this model reads features, and the operations task is made of tokens: "
            "choose a preset that reads tokens, such as ops-102k."
        )
    if config.vocab < len(WORDS):
        raise TapelessError(f"the operations task has {len(WORDS)} words, so vocab={config.vocab} is too small.")
    if config.context < LENGTH:
        raise TapelessError(f"an expression has {LENGTH} tokens, so context={config.context} is too short.")


class ExpressionReader:
    """Expressions as people write them, to be answered."""

    name = "expressions such as Max(1,6,2)"
    joint = " = "

    def encode(self, text: str) -> list[int]:
        """Its words; blanks between them are nothing."""
        found, place = [], 0
        while place < len(text):
            word = next((word for word in SPELLED if text.startswith(word, place)), None)
            if word is not None:
                found.append(WORDS.index(word))
            elif not text[place].isspace():
                raise TapelessError(f"{text[place:][:20]!r} begins with no word of the operations task: {EXPECTED}.")
            place += len(word or " ")
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """An id that stands for no word, as a model with a larger vocabulary has them, gives none."""
        return "".join(WORDS[token] for token in ids if 0 <= token < len(WORDS))

    def expressions(self, text: str) -> Expressions:
        tokens = np.array(self.encode(text), np.int64)
        if not len(tokens) or len(tokens) % LENGTH:
            raise TapelessError(f"{text[:40]!r} is no whole expression: {EXPECTED}.")
        tokens = tokens.reshape(-1, LENGTH)
        known = {tuple(each): answer for each, answer in zip(*_everything(), strict=True)}
        for each in tokens:
            if tuple(each) not in known:
                raise TapelessError(f"{spell(each)!r} is no expression: {EXPECTED}.")
        return Expressions(tokens, np.array([known[tuple(each)] for each in tokens]))

    def batches(self, model: Model, text: str) -> Iterator[tuple[Array, Array]]:
        """One expression after the other; where the last ones fill no batch, the rest has target −1."""
        asked = self.expressions(text)
        starts = range(0, len(asked), model.batch)
        return (self._batch(model, asked, slice(start, start + model.batch)) for start in starts)

    def _batch(self, model: Model, asked: Expressions, chosen: slice) -> tuple[Array, Array]:
        tokens, targets = asked.tokens[chosen], targets_for(model.config, asked.answers[chosen])
        missing = ((0, model.batch - len(tokens)), (0, 0))
        return np.pad(tokens, missing), np.pad(targets, missing[: targets.ndim], constant_values=-1)

    def measure(self, model: Model, text: str, window: int) -> Measured:
        loss, accuracy, surprise = _means(model, self.expressions(text))
        return Measured(loss, accuracy, cross_entropy=surprise)

    def write(self, model: Model, prompt: str, asked: Sampling, window: int) -> Writing:
        """The answer: one word, and the likeliest where no temperature was asked for."""
        for name in ("count", "stop"):
            if getattr(asked, name) is not None:
                raise TapelessError(f"{name} would have no effect, as an answer is one word: leave it out.")
        expressions, how = self.expressions(prompt), asked.drawing(usual=0.0)
        if len(expressions) > 1:
            raise TapelessError(f"{prompt[:40]!r} is {len(expressions)} expressions: ask one at a time.")
        check_sampling(**how)
        scores = checked_scores(final_scores(model, expressions.tokens)[0])
        rng = np.random.default_rng(how.pop("seed"))
        return Writing(lambda on_slide: [choose(scores, **how, rng=rng)], Answer(), asked, "that is its answer")


class Answer:
    """One word, which a model with a larger vocabulary may have made up."""

    def push(self, token: int) -> str:
        return WORDS[token] if token < len(WORDS) else f"word {token}"

    def finish(self) -> str:
        return ""


class Operations(Task):
    """The task as a trainer sees it: batches to learn from, and a measure of what was learned."""

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

    def summary(self) -> str:
        return f"{len(self.training):,} expressions to train, {len(self.validation):,} held out"

    def farewell(self, ended: Ended) -> Farewell:
        """Some held-out expressions, five that were answered rightly and five that were not."""
        said = final_scores(ended.model, self.validation.tokens).argmax(axis=1)
        good = said == self.validation.answers
        shown = [*np.flatnonzero(good)[:5], *np.flatnonzero(~good)[:5]]
        rows = tuple(
            (
                spell(self.validation.tokens[index]),
                "=",
                Answer().push(said[index]),
                "✓" if good[index] else f"✗ it is {WORDS[self.validation.answers[index]]}",
            )
            for index in shown
        )
        command = ended.command
        return Farewell(
            f"held-out expressions, never trained on, answered with {ended.weights}",
            rows=rows,
            next=(
                (f"{command} explain {ended.preset} --values", "every gradient, with its norm"),
                (f"{command} check", "prove them to twelve digits"),
                (
                    f"{command} train gpt2-4x256 --set layers=2 --set channels=128 --data stdlib",
                    "a GPT that learns Python",
                ),
            ),
        )


class OperationBatches(Epochs):
    def __init__(self, config: Architecture, examples: Expressions, batch: int, seed: int) -> None:
        if batch > len(examples):
            raise TapelessError(f"batch={batch} is more than the {len(examples):,} examples there are.")
        self._config, self._examples, self._seed = config, examples, seed
        super().__init__(len(examples) // batch, examples=len(examples), batch=batch, seed=seed)

    def draw(self, epoch: int) -> Array:
        return order(random_bits(self._seed, 1, epoch), len(self._examples))

    def make(self, chosen: Array) -> tuple[Array, Array]:
        return self._examples.tokens[chosen], targets_for(self._config, self._examples.answers[chosen])


KIND = TaskKind(
    "operations",
    takes=lambda data, folder: data == "operations",
    open=lambda asked: (Operations(asked.preset.architecture, asked.seed), asked.preset),
    # With AdamW 20 of 20 seeds end at 99.9 % or more: benchmarks/seeds.py.
    defaults={"batch": 32, "epochs": 10.0, "lr": 2e-3, "schedule": "linear", "decay": TRAINED_DECAY},
    length=LENGTH,
    presets=("ops-102k",),
    reader=lambda run, tokenizer: ExpressionReader(),
)


def targets_for(config: Architecture, answers: Array) -> Array:
    """The answer stands at the last position; every other target is −1."""
    if config.readout == "last":
        return answers
    targets = np.full((len(answers), LENGTH), -1)
    targets[:, -1] = answers
    return targets


def evaluate(model: Model, examples: Expressions) -> tuple[float, float]:
    """Mean loss and accuracy."""
    loss, accuracy, _ = _means(model, examples)
    return loss, accuracy


def _means(model: Model, examples: Expressions) -> tuple[float, float, float]:
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
    scores = scores.real
    picked = scores[np.arange(len(scores)), answers]
    largest = scores.max(axis=1)
    surprise = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1)) - picked
    # The scores of a squared-error model are minus the squared distances, its loss is their mean over channels.
    losses = -picked / config.channels if config.loss == "squared_error" else surprise
    right = scores.argmax(axis=1) == answers
    return np.array([losses.sum(dtype=np.float64), right.sum(), surprise.sum(dtype=np.float64)])
