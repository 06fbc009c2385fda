"""Text as a trainer sees it: windows of tokens, each to be continued by the token after it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.generate import generate
from tapeless.model import Model
from tapeless.models.config import TRAINED_DECAY, Preset
from tapeless.models.presets import PRESETS
from tapeless.ops.contract import Array
from tapeless.tasks.data.batches import Batches, evaluation_batches
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer
from tapeless.tasks.data.tokens import TokenData, Tokens, holds_tokens, open_data
from tapeless.tasks.scoring import measure, score_text
from tapeless.tasks.task import Asked, Ended, Farewell, Measured, Task, TaskKind
from tapeless.tasks.writing import Sampling, Writing

TEMPERATURE = 0.8  # where nobody says
SELF_EXPLAINING = ("hidden", "binary", "empty", "not a file")
LOOKED_THROUGH = 1 << 16  # tokens held out, among which documents to continue are looked for
LONGEST_PROMPT = 24  # characters


class Text(Task):
    def __init__(self, data: TokenData, time: int, seed: int) -> None:
        self.data, self.time, self.seed = data, time, seed
        self.tokenizer = data.tokenizer

    def batches(self, batch: int) -> Batches:
        return Batches(self.data.training, batch, self.time, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """The same held-out windows every time, so that two evaluations can be compared."""
        held_out = evaluation_batches(self.data.validation, model.batch, self.time, batches)
        return measure(model, held_out)

    def summary(self) -> str:
        told = f"{len(self.data.training):,} tokens to train, {len(self.data.validation):,} held out"
        left_out = told_left_out(self.data.skipped, self.data.examples)
        guessed = "" if self.tokenizer is None else self.tokenizer.guessed
        return "; ".join(each for each in (told, left_out, guessed) if each)

    def prompt(self, seed: int) -> str:
        """The beginning of a document that was held out, for the model to go on with: a few words of a line."""
        assert self.tokenizer is not None
        held_out = self.data.validation
        ids = held_out.window(0, min(len(held_out), LOOKED_THROUGH))
        begins = [0, *(np.flatnonzero(ids[:-1] == self.tokenizer.end) + 1)]
        begin = begins[seed % len(begins)]
        lines = self.tokenizer.decode(ids[begin : begin + 8 * LONGEST_PROMPT]).strip("\n\ufffd ").splitlines()
        line = next((line.strip() for line in lines if any(map(str.isalnum, line))), "")
        short = line[:LONGEST_PROMPT]
        return short if len(line) <= LONGEST_PROMPT else short.rpartition(" ")[0] or short

    def identity(self) -> dict[str, Any]:
        return {"data": self.data.sha256}

    def farewell(self, ended: Ended) -> Farewell:
        if self.tokenizer is None:
            return Farewell()
        prompt = ended.prompt or self.prompt(ended.step)
        command = f"{ended.command} sample {ended.spelled} --prompt {shlex.quote(prompt)}"
        written = continuation(ended.model, self.tokenizer, prompt, 96, seed=ended.step)
        title = f"a sample, from {ended.weights}"
        if not ended.prompt:
            title += "; it goes on from the beginning of a text that was held out"
        return Farewell(title, text=written, next=((command, "let it write"),))


def told_left_out(skipped: Mapping[str, int], examples: Mapping[str, str]) -> str:
    """What of a source was not taken, for people; of what could have been text one is named."""
    told = []
    for reason, count in sorted(skipped.items()):
        named = f" ({examples[reason]})" if reason not in SELF_EXPLAINING and reason in examples else ""
        told.append(f"{count:,} {reason.replace('rows', 'row') if count == 1 else reason}{named}")
    return f"left out: {', '.join(told)}" if told else ""


class TextReader:
    """Text as a tokenizer has it, to be continued."""

    joint = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.name = f"text ({tokenizer.name})"

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids)

    def batches(self, model: Model, text: str) -> Iterator[tuple[Array, Array]]:
        """Windows that do not overlap. The text is a document: its first token follows the end of another."""
        tokens = [self.tokenizer.end, *self._some(text)]
        return evaluation_batches(Tokens([np.array(tokens)]), model.batch, model.time)

    def measure(self, model: Model, text: str, window: int) -> Measured:
        """Every token of it once, from at least half a window of what stands before, and that it ends there."""
        tokens = [*self._some(text), self.tokenizer.end]
        found = score_text(model, Tokens([np.array(tokens)]), window, start=self.tokenizer.end)
        return Measured(found.loss, found.accuracy, cross_entropy=found.cross_entropy)

    def _some(self, text: str) -> list[int]:
        tokens = self.encode(text)
        if not tokens:
            raise TapelessError("an empty text has nothing to be predicted: give some.")
        return tokens

    def write(self, model: Model, prompt: str, asked: Sampling, window: int) -> Writing:
        read, end, stops = self.encode(prompt), self.tokenizer.end, self.tokenizer.stops

        def tokens(on_slide: Callable[[], None]) -> Iterator[int]:
            return generate(
                model,
                read or [end],
                asked.most,
                **asked.drawing(TEMPERATURE),
                stop=stops,
                window=window,
                on_slide=on_slide,
            )

        return Writing(tokens, self.tokenizer.stream(), asked)


def text_reader(run: Path, tokenizer: str | Path | None) -> TextReader:
    if tokenizer is None:
        raise TapelessError(f"{run} did not learn from text, so it has no tokenizer to read or write with.")
    return TextReader(load_tokenizer(tokenizer))


def continuation(model: Model, tokenizer: Tokenizer | None, prompt: str, count: int, seed: int) -> str:
    """The prompt and what the model goes on with."""
    if tokenizer is None:
        raise TapelessError("a sample needs a tokenizer, and this data has none: leave --sample out.")
    tokens = tokenizer.encode(prompt) or [tokenizer.end]
    return prompt + tokenizer.decode(list(generate(model, tokens, count, temperature=TEMPERATURE, seed=seed)))


def open_text(asked: Asked) -> tuple[Text, Preset]:
    """Tokens as they are, or a text made into tokens in the run's folder."""
    check_learns_text(asked.preset)
    made, source = asked.folder / "data", Path(asked.data)
    if not made.exists() and holds_tokens(source):
        data = open_data(source, validation=asked.validation)
    else:
        if not made.exists():
            prepare(asked.data, made, **asked.preparing())
        data = open_data(made)
    preset = with_vocabulary(asked, data.vocab, data.tokenizer)
    return Text(data, asked.time, asked.seed), preset


def with_vocabulary(asked: Asked, vocab: int, tokenizer: Tokenizer | None) -> Preset:
    """The model with as many tokens as its tokenizer has, unless another number was asked for."""
    preset = asked.preset
    if asked.vocab is None and tokenizer is not None:
        preset = preset.override(vocab=vocab)
    if vocab > preset.architecture.vocab:
        raise TapelessError(
            f"the data has a vocabulary of {vocab:,} and the model one of {preset.architecture.vocab:,}: "
            f"leave vocab out, or give at least {vocab}."
        )
    return preset


def check_learns_text(preset: Preset) -> None:
    name, config = preset.name, preset.architecture
    if config.readout == "last":
        option, why = "readout=last", "answers once per sequence"
    elif not config.causal:
        option, why = "causal=false", "sees the words that it should predict"
    else:
        return
    usual = PRESETS[name].architecture if name in PRESETS else config
    if usual.readout != "last" and usual.causal:
        raise TapelessError(f"with {option} {name} {why}: leave that out to learn text.")
    raise TapelessError(f"{name} {why}: to learn text choose a GPT, such as gpt2-4x256.")


KIND = TaskKind(
    "text",
    takes=lambda data, folder: True,  # whatever no other kind takes
    open=open_text,
    # What small GPTs are usually trained with.
    defaults={
        "batch": 8,
        "time": 256,
        "steps": 1000,
        "lr": 1e-3,
        "schedule": "cosine",
        "clip": 1.0,
        "beta2": 0.99,
        "decay": TRAINED_DECAY,
    },
    reader=text_reader,
)
