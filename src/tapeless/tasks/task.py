"""What a trainer needs to know of what it trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Measured:
    """What an evaluation found. Accuracy is None where it means nothing, the training side where it is not measured.

    Cross-entropy is there beside a squared error: of the softmax over minus the squared distances, temperature 1.
    """

    loss: float
    accuracy: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    cross_entropy: float | None = None


class Stream(Protocol):
    """Batches without end, in an order that a seed decides and a small state can bring back."""

    @property
    def epoch(self) -> int: ...

    @property
    def steps_per_epoch(self) -> int: ...

    def __next__(self) -> tuple[Array, Array]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Task(Protocol):
    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def batches(self, batch: int) -> Stream: ...

    def evaluate(self, model: Model, batches: int) -> Measured: ...
