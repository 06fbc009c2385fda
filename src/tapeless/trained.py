"""What a training has left, in Python again (`tapeless.load`): a model with the weights of a checkpoint, and with what
it reads, so that text goes in and comes out."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import exp, inf
from operator import index
from pathlib import Path
from typing import Any, Unpack

from tapeless.errors import TapelessError, brief, unknown
from tapeless.labelling.genome.found import FILE as DECODER
from tapeless.labelling.output import label_given
from tapeless.labelling.run import EVERY_KIND
from tapeless.labelling.run import KIND as LABELLED
from tapeless.labelling.scores import SCORES
from tapeless.labelling.source import SOURCE, read_source
from tapeless.model import Model
from tapeless.models.config import Architecture, Optimizer
from tapeless.ops.contract import Array
from tapeless.shown import Sheet, Shown
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.chat.talk import Talk
from tapeless.tasks.chat.template import FILE as CHAT
from tapeless.tasks.conversations import speech_of
from tapeless.tasks.data.files import user_path
from tapeless.tasks.data.tokenizer import FILE as TOKENIZER
from tapeless.tasks.kinds import kind_of
from tapeless.tasks.scoring import LARGEST_POWER
from tapeless.tasks.task import Reader
from tapeless.tasks.writing import Sampling, SamplingFields, Writing
from tapeless.train import checkpoint as checkpoints
from tapeless.train.believed import LINES
from tapeless.train.doctor import Diagnosis, diagnose, read_setup
from tapeless.train.metrics import read_metrics
from tapeless.train.run import CONFIGURATION, Run, making, open_run, write_configuration
from tapeless.train.settings import Settings

BESIDE = (TOKENIZER, CHAT, SOURCE, DECODER, SCORES)  # what of a run's folder a model cannot do without


def load(
    run: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    backend: str = DEFAULT_BACKEND,
    precision: str | None = None,
    batch: int = 1,
    time: int | None = None,
    optimizer: str | Optimizer | None = None,
) -> Trained:
    """A run, back in Python: `tapeless.load("runs/gpt2-4x256-001").generate("Once")`.

    Args:
        run: The folder that `tapeless train` or `tapeless import` made.
        checkpoint: `"best"`, `"newest"`, or the number of a step that has one (`.checkpoints` lists them).
        backend: `"cpu"`, `"cuda"` or `"reference"`, whatever it was trained on.
        precision: `"float32"`, `"float64"`, `"bfloat16"` or `"complex128"`; the backend's own by default.
        batch: Sequences at a time, of `.model`.
        time: Positions of a sequence, of `.model`; by default as many as it was trained on.
        optimizer: `"preset"`, `"adamw"`, …: to train on in Python. None: it has gradients and no update, which saves
            memory.

    Where a checkpoint is damaged and another is taken, a warning says so; where the very one that was asked for is, or
    where the folder is no run, a TapelessError does.
    """
    loaded = Trained(
        opened(run), checkpoint, backend=backend, precision=precision, batch=batch, time=time, optimizer=optimizer
    )
    for message in loaded.messages:
        warnings.warn(message, stacklevel=2)
    return loaded


def opened(run: str | os.PathLike[str]) -> Run:
    """A run to be read, as users name it."""
    if not isinstance(run, str | os.PathLike) or not str(run):
        raise TapelessError(f"a run is the path of its folder, such as 'runs/ops-102k-001', not {brief(run)}.")
    folder = user_path(Path(run))
    try:
        step = checkpoints.NAME.fullmatch(folder.name)
        if step and folder.is_dir():
            whole = folder.parent.parent
            raise TapelessError(f"{folder} is a checkpoint: load the run '{whole}' with checkpoint={int(step[1])}.")
        if (folder / "config.json").is_file() and not (folder / CONFIGURATION).exists():
            remedy = f"`tapeless import {folder}` makes a run of it"
            raise TapelessError(f"{folder} is no run but a folder in the Hugging Face layout: {remedy}.")
        return open_run(folder)
    except OSError as error:  # a name that is too long, a folder that nobody may look into
        raise TapelessError(f"cannot open the run {str(folder)[:100]}: {error.strerror}.") from None


class Trained(Shown):
    """A trained model and all that belongs to it. `tapeless.load` makes it."""

    def __init__(self, run: Run, checkpoint: str | int, *, time: int | None = None, **how: Any) -> None:
        """As `load` has it; what the user should know is in `messages`."""
        self.run = run
        self.folder = run.folder
        self._request = run.request()
        self._kind = kind_of(self._request.settings.data, run.folder, EVERY_KIND)
        self.window = run.window()
        context = run.preset().architecture.context
        if isinstance(time, int) and time > context:
            raise TapelessError(f"{run.folder} reads {context:,} positions at most, so time={time} is too many.")
        self.model: Model
        self.model, found, self.messages = run.model(checkpoint, time=self.window if time is None else time, **how)
        self.step = found.step
        self._asked = str(checkpoint)

    @property
    def config(self) -> Architecture:
        """The model's sizes: `.config.layers`, `.config.channels`, …"""
        return self.model.config

    @property
    def settings(self) -> Settings:
        """What it was trained with: `.settings.lr`, `.settings.data`, …"""
        return self._request.settings

    @property
    def checkpoints(self) -> list[int]:
        """The steps whose weights are kept, the earliest first: each can be loaded."""
        return checkpoints.steps(self.run.checkpoints)

    @cached_property
    def reader(self) -> Reader:
        """What turns text into what the model reads, and back."""
        return self._kind.reader(self.folder, self.run.tokenizer_spec())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, as the model reads them."""
        return self.reader.encode(_text(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        try:
            ids = [index(token) for token in tokens]
        except TypeError:
            raise TapelessError(f"tokens must be a sequence of whole numbers, not {brief(tokens)}.") from None
        for token in ids:
            if not 0 <= token < self.config.vocab:
                raise TapelessError(f"there is no token {token}: this model knows 0 to {self.config.vocab - 1}.")
        return self.reader.decode(ids)

    def generate(
        self,
        prompt: str = "",
        count: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | None = None,
    ) -> str:
        """What the model goes on with after `prompt`, without the prompt itself. Of the operations task, the answer.

        Args:
            prompt: What it continues; without one it starts a document.
            count: The most tokens that it writes; by default 200.
            temperature: 0 always takes the likeliest token; by default 0.8 for text and 0 for answers.
            top_k: Choose among the k likeliest.
            top_p: Choose among the likeliest that make up this share.
            seed: The same seed writes the same text; by default 0.
            stop: End before this text.
        """
        how = SamplingFields(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop)
        return self.stream(prompt, count, **how).whole()

    def stream(self, prompt: str = "", count: int | None = None, **how: Unpack[SamplingFields]) -> Writing:
        """The same piece by piece, as it is written: `for piece in run.stream("Once"): print(piece, end="")`. It takes
        what `generate` takes."""
        return self.reader.write(self.model, _text(prompt), Sampling(count, **how), self.window)

    def label(self, given: Any) -> Array:
        """Of a run of `tapeless label`: the probability of each class at every position of a signal, an array
        (samples, classes). Of DNA, given as text such as "ACGT", that of being in what the run finds: an array
        (2, bases), on the + strand and on the −, both from left to right."""
        if self._kind is not LABELLED:
            raise TapelessError(f"{self.folder} labels nothing: `.generate` is what it does with a text.")
        return label_given(self.model, read_source(self.folder), given)

    def chat(self, system: str | None = None) -> Talk:
        """A conversation with the model, by its own template or the plain one: `talk = run.chat()`, then
        `print(talk.say("Hello").whole())`, as often as there is something to say. `system`: what it is told first."""
        return Talk(self.model, speech_of(self.folder, self.run.tokenizer_spec()), self.window, system)

    def batches(self, text: str) -> Iterator[tuple[Array, Array]]:
        """What the model is asked about a text: `inputs, targets` for `model.forward_backward` or `model.trace`, in
        windows that do not overlap. Every token of the text is a target once; what fills up the last window has
        target −1."""
        return self.reader.batches(self.model, _text(text))

    def loss(self, text: str) -> float:
        """The model's loss on a text: of a language model, nats per token, each from at least half a window of what
        stands before it, its end among them, as `tapeless evaluate` counts. Of the operations task, on the right
        answers to the expressions in it."""
        return self.reader.measure(self.model, _text(text), self.window).loss

    def perplexity(self, text: str) -> float:
        """e to the mean cross-entropy: between how many tokens it wavers, on average, before each one of the text."""
        surprise = self.reader.measure(self.model, _text(text), self.window).cross_entropy
        assert surprise is not None  # which readers measure always
        return exp(surprise) if surprise < LARGEST_POWER else inf

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the training recorded, line by line; of a `kind` ("step", "evaluation", …) those alone."""
        lines = read_metrics(self.folder)
        known = {*LINES, *(line["kind"] for line in lines)}
        if kind is not None and kind not in known:
            raise unknown("kind of metrics", kind, known)
        return [line for line in lines if kind in (None, line["kind"])]

    def doctor(self) -> Diagnosis:
        """How the training went, in plain words, as `tapeless doctor` says it."""
        return diagnose(self.metrics(), read_setup(self.folder))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """The weights as they are now, as a run of its own, that can be loaded, sampled, exported, or trained further
        with `tapeless train --init-from`. The folder must not be there yet."""
        if not isinstance(folder, str | os.PathLike) or "\0" in str(folder):
            raise TapelessError(f"a run is saved in a folder, and {brief(folder)} is the path of none: give one.")
        out = user_path(Path(folder))
        if os.path.lexists(out):
            raise TapelessError(f"{out} exists already, and is not written over: choose another folder.")
        step = self.step + self.model.steps
        with making(out) as made:
            write_configuration(made, self._request, self.model.preset)
            for name in BESIDE:
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, made.folder / name)
            state = {"step": step, "from": str(self.folder)}
            checkpoints.save(made.checkpoints, step, {"weights": self.model.weights()}, state, best=True)
        made.release()
        return out

    def _sheet(self) -> Sheet:
        model, config = self.model, self.config
        which = "" if self._asked.isdigit() else f"{self._asked}, "
        lines = [
            ("model", f"{config.described()}, {model.parameters:,} parameters"),
            ("weights", f"{which}after update {self.step:,}{self._asked_for()}{self._measured()}"),
            ("reads", f"{self._reads()}, {self.window:,} positions"),
            ("runs", f"on {model.backend} in {model.precision.described()}, batch {model.batch} × time {model.time}"),
        ]
        return Sheet(f"{self.folder}: {self._request.preset}", lines, remarks=self.messages)

    def _asked_for(self) -> str:
        steps = self.settings.steps  # a model that was trained on in Python may have made more
        return f" of {steps:,}" if steps and steps >= self.step else ""

    def _reads(self) -> str:
        try:
            return self.reader.name
        except TapelessError:
            return f"{self.config.features} features" if self.config.features else "tokens without a tokenizer"

    def _measured(self) -> str:
        """What was held out, as it was evaluated with these weights."""
        try:
            found = [line for line in self.metrics("evaluation") if line["step"] == self.step]
        except TapelessError:  # a run that was imported has no metrics
            return ""
        if not found:
            return ""
        loss, accuracy = found[-1].get("loss"), found[-1].get("accuracy")
        told = "" if loss is None else f"; held-out loss {loss:.4g}"
        return told + ("" if accuracy is None else f", {accuracy:.2%} right")


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TapelessError(f"this takes text, not {type(given).__name__}; `.model` takes tokens.")
    return given
