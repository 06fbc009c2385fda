"""What a trainer needs to know of what it trains on: the kind of task, before any data are opened, and the task itself.

A task owns all that is its own: its defaults, how its data are opened, what it says of them and what it says at the
end. A new one is a module with a `TaskKind`, and a line where kinds are listed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tapeless.model import Model
from tapeless.models.config import Preset
from tapeless.ops.contract import Array
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.tokenizer import Tokenizer
from tapeless.tasks.writing import Sampling, Writing

Progress = Callable[[str, int, int], None]  # what, done, of how much


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


@dataclass(frozen=True)
class Farewell:
    """What a task says once a training has ended."""

    title: str = ""
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()  # cells, of which ✓ and ✗ begin what is right and what is wrong
    text: str = ""  # what the model wrote
    remark: str = ""
    warning: str = ""
    result: str = ""  # where accuracy and loss do not say it
    beside: str = ""  # what lies in the run besides
    next: tuple[tuple[str, str], ...] = ()  # commands, each with what it does


class Stream(Protocol):
    """Batches without end, in an order that a seed decides and a small state can bring back."""

    @property
    def epoch(self) -> int: ...

    @property
    def steps_per_epoch(self) -> int: ...

    def __next__(self) -> tuple[Any, Array]:
        """Inputs, as a model takes them, and targets."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Task(ABC):
    tokenizer: Tokenizer | None = None
    shows_best = True  # at the end it is asked with the weights of the best checkpoint; else with the last
    class_weights: tuple[float, ...] | None = None  # how much each class counts in the loss

    @abstractmethod
    def batches(self, batch: int) -> Stream: ...

    @abstractmethod
    def evaluate(self, model: Model, batches: int) -> Measured: ...

    def summary(self) -> str:
        """How much there is to learn from, in a few words."""
        return ""

    def identity(self) -> dict[str, Any]:
        """What the data must still be where a run goes on, besides what a position in them says."""
        return {}

    def keep(self, folder: Path) -> None:
        """Write into a new run's folder what its model is spoken with."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    def farewell(self, ended: Ended) -> Farewell:
        return Farewell()


@dataclass(frozen=True)
class Ended:
    """A training that has come to its end, as its task is told of it."""

    model: Model
    step: int  # of the weights that the model has now
    lr: float | None
    prompt: str | None  # what the user wants continued
    preset: str
    folder: Path  # of the run
    spelled: str  # the same, as a command line takes it
    command: str  # this program, as it was started
    progress: Progress | None = None

    @property
    def weights(self) -> str:
        """Which weights it is asked with, where these are the best."""
        return f"the best checkpoint, of step {self.step:,}"


@dataclass(frozen=True)
class Asked:
    """What a task is opened with: of a run's settings those about data, and the model that is to learn."""

    preset: Preset
    data: str
    tokenizer: str
    validation: float
    time: int
    seed: int
    folder: Path  # of the run
    vocab: int | None = None  # where it was asked for, and is not the data's to say
    inherited: str | Path | None = None  # the tokenizer of the run whose weights it starts from
    class_weights: tuple[float, ...] | None = None  # that the run has been trained with
    reading: Reading | None = None  # how text is taken out of files
    progress: Progress | None = None

    read: set[str] = field(default_factory=set, compare=False, repr=False)  # the fields that the task has looked at

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name != "read":
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return found

    def preparing(self) -> dict[str, Any]:
        """How a text or conversations become tokens, as keywords."""
        learned = self.inherited is None and self.tokenizer == "bpe"
        return {
            "tokenizer": str(self.inherited or self.tokenizer),
            "vocab": self.vocab if learned else None,
            "validation": self.validation,
            "seed": self.seed,
            "reading": self.reading,
            "progress": self.progress,
        }


class Reader(Protocol):
    """How one talks with a model that has learned a task: text goes in and comes out."""

    @property
    def name(self) -> str:
        """What it reads, in a word or two."""

    @property
    def joint(self) -> str:
        """What stands between a prompt and what the model says to it, where both are shown."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def batches(self, model: Model, text: str) -> Iterator[tuple[Array, Array]]:
        """All that the model can be asked about a text: inputs and targets, as large as its batches are."""

    def measure(self, model: Model, text: str, window: int) -> Measured:
        """How well the model predicts all that it can be asked about a text. `window`: the positions it was trained
        on."""

    def write(self, model: Model, prompt: str, asked: Sampling, window: int) -> Writing:
        """What the model says to a prompt."""


@dataclass(frozen=True)
class TaskKind:
    """What is known of a task before its data are opened."""

    name: str  # as help texts have it
    takes: Callable[[str, Path | None], bool]  # whether it is what `data` names, in a run's folder where there is one
    open: Callable[[Asked], tuple[Task, Preset]]  # with the model's sizes as the data want them
    defaults: Mapping[str, Any]  # settings where nobody says
    # How one talks with a run of it, which is in this folder and has this tokenizer; refused where that is not by text.
    reader: Callable[[Path, str | Path | None], Reader]
    length: int | None = None  # of its sequences, where not the setting `time` decides
    presets: Sequence[str] = ()  # which learn it where no data are named
