"""The operations task: `Max(1,6,2)` → `6`. All 5,000 distinct expressions, 4,000 to train, 1,000 to validate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from tapeless.errors import TapelessError
from tapeless.models.config import Config
from tapeless.ops.contract import Array

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


def check_fits(config: Config) -> None:
    """A model that can learn this task reads tokens, knows the words and holds an expression."""
    if config.features:
        raise TapelessError(
            f"{config.name} reads features, and the operations task is made of tokens: "
            f"choose a preset that reads tokens, such as ops-102k."
        )
    if config.vocab < len(WORDS):
        raise TapelessError(f"the operations task has {len(WORDS)} words, so vocab={config.vocab} is too small.")
    if config.context < LENGTH:
        raise TapelessError(f"an expression has {LENGTH} tokens, so context={config.context} is too short.")
