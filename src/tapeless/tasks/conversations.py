"""Conversations as a trainer sees them: rows that several of them share, in which the assistant's words are learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.generate import generate
from tapeless.model import Model
from tapeless.models.config import Preset
from tapeless.tasks.chat.layouts import are_conversations
from tapeless.tasks.chat.packing import ChatBatches, PackedRows, every_row, told_cut
from tapeless.tasks.chat.prepare import ChatData, holds_conversations, open_chats, prepare_chats
from tapeless.tasks.chat.template import Message, chat_beside
from tapeless.tasks.chat.turns import Speech
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.tasks.scoring import measure
from tapeless.tasks.task import Asked, Ended, Farewell, Measured, Task, TaskKind
from tapeless.tasks.text import TEMPERATURE, TextReader, check_learns_text, told_left_out, with_vocabulary
from tapeless.tasks.writing import Sampling, Writing

ANSWER = 96  # tokens that it says in the end, at most


class Conversations(Task):
    def __init__(self, data: ChatData, preset: Preset, time: int, seed: int) -> None:
        packed = preset.architecture.packable
        self.data, self.seed = data, seed
        self.tokenizer = data.tokenizer
        self.training, self.validation = (PackedRows(side, time, packed) for side in (data.training, data.validation))

    def batches(self, batch: int) -> ChatBatches:
        return ChatBatches(self.training, batch, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """The same held-out rows every time; a mean over the assistant's tokens."""
        return measure(model, every_row(self.validation, model.batch, batches))

    def summary(self) -> str:
        about, rows = self.data.about, self.training
        told = [
            f"{about.training.conversations:,} conversations to train, {about.validation.conversations:,} held out; "
            f"{about.training.learned / about.training.tokens:.0%} of their tokens are the assistant's",
            f"{len(rows):,} rows, {rows.filled:.0%} filled" + ("" if rows.packed else ", a conversation each"),
        ]
        if cut := told_cut(rows, self.validation):
            longest = max(rows.longest, self.validation.longest)
            told.append(f"{cut}: --time {longest:,} holds every one")
        left_out = told_left_out(about.skipped, about.examples)
        return "; ".join(each for each in (*told, left_out, self.data.tokenizer.guessed) if each)

    def identity(self) -> dict[str, Any]:
        return {"data": self.data.about.training.sha256 + self.data.about.validation.sha256}

    def keep(self, folder: Path) -> None:
        super().keep(folder)
        self.data.chat.save(folder)

    def farewell(self, ended: Ended) -> Farewell:
        speech = Speech(self.data.chat, self.data.tokenizer)
        talk = (f"{ended.command} chat {ended.spelled}", "talk with it")
        if ended.prompt is None:
            return Farewell(next=(talk,))
        asked = Sampling(ANSWER, seed=ended.step)
        said = answer(ended.model, speech, [{"role": "user", "content": ended.prompt}], asked).whole()
        return Farewell(f"asked {ended.prompt!r}, it answers, with {ended.weights}", text=said, next=(talk,))


def answer(
    model: Model, speech: Speech, messages: Sequence[Message], asked: Sampling, window: int | None = None
) -> Writing:
    """What the model says next in a conversation, up to the end of its turn."""
    read = speech.invitation(messages)

    def tokens(on_slide: Callable[[], None]) -> Iterator[int]:
        return generate(
            model, read, asked.most, **asked.drawing(TEMPERATURE), stop=speech.ends, window=window, on_slide=on_slide
        )

    return Writing(tokens, speech.tokenizer.stream(), asked, "it ended its turn")


class ConversationReader(TextReader):
    """A prompt is what a user says, and what the model writes is its answer; text that is measured is plain."""

    joint = "\n"

    def __init__(self, speech: Speech) -> None:
        super().__init__(speech.tokenizer)
        self.speech = speech
        self.name = f"conversations ({speech.tokenizer.name})"

    def write(self, model: Model, prompt: str, asked: Sampling, window: int) -> Writing:
        if not prompt.strip():
            raise TapelessError("this model answers, and nothing was said to it: give a prompt.")
        return answer(model, self.speech, [{"role": "user", "content": prompt}], asked, window)


def conversation_reader(run: Path, tokenizer: str | Path | None) -> ConversationReader:
    return ConversationReader(speech_of(run, tokenizer))


def speech_of(run: Path, tokenizer: str | Path | None) -> Speech:
    """By what a run is spoken with; whatever it learned, it needs a tokenizer."""
    if tokenizer is None:
        raise TapelessError(f"{run} did not learn from text, so it has no tokenizer to read or write with.")
    loaded = load_tokenizer(tokenizer)
    return Speech(chat_beside(run, loaded), loaded)


def open_conversations(asked: Asked) -> tuple[Conversations, Preset]:
    """Tokens of conversations as they are, or a file of conversations made into them in the run's folder."""
    check_learns_text(asked.preset)
    made = asked.folder / "data"
    if not made.exists() and holds_conversations(Path(asked.data)):
        data = open_chats(Path(asked.data))
        _check_same_tokens(asked, data)
    else:
        if not made.exists():
            prepare_chats(asked.data, made, **asked.preparing())
        data = open_chats(made)
    preset = with_vocabulary(asked, data.tokenizer.vocab, data.tokenizer)
    return Conversations(data, preset, asked.time, asked.seed), preset


def _check_same_tokens(asked: Asked, data: ChatData) -> None:
    theirs = None if asked.inherited is None else load_tokenizer(asked.inherited)
    if theirs is not None and (theirs.name, theirs.specials) != (data.tokenizer.name, data.tokenizer.specials):
        raise TapelessError(
            f"{asked.data} holds tokens of {data.tokenizer.name}, and the model that it starts from reads "
            f"{theirs.name}: give the conversations themselves."
        )


def _takes(data: str, folder: Path | None) -> bool:
    if folder is not None and (folder / "data").is_dir():
        return holds_conversations(folder / "data")
    return bool(data) and (holds_conversations(Path(data)) or are_conversations(data))


KIND = TaskKind(
    "conversations",
    takes=_takes,
    open=open_conversations,
    # A model that can write already, and is taught how one answers: a few passes, and gentle ones.
    defaults={
        "batch": 4,
        "time": 512,
        "epochs": 3.0,
        "lr": 1e-4,
        "schedule": "cosine",
        "clip": 1.0,
        "beta2": 0.99,
        "decay": 0.0,
    },
    reader=conversation_reader,
)
