"""A run's weights, judged by what was held out from them, or by any text or conversations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.files.plain import read_json
from tapeless.model import Model
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks import conversations, text
from tapeless.tasks.chat.packing import PackedRows, told_cut
from tapeless.tasks.chat.prepare import Side, holds_conversations, open_chats, whole_chats
from tapeless.tasks.conversations import speech_of
from tapeless.tasks.data import meta as metadata
from tapeless.tasks.data.corpus import find_documents
from tapeless.tasks.data.files import LARGEST_JSON, user_path
from tapeless.tasks.data.reading import READING_HELP, Reading
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer, lost_in
from tapeless.tasks.data.tokens import TokenData, Tokens, holds_tokens, open_data
from tapeless.tasks.kinds import KINDS, kind_of
from tapeless.tasks.scoring import Scored, score_rows, score_text
from tapeless.tasks.task import Progress, TaskKind
from tapeless.tasks.text import told_left_out
from tapeless.train.base import all_weights
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.run import Run
from tapeless.train.session import open_task

HELD_OUT = "held out"
ALL = 1 << 40  # batches: more than there are


@dataclass(frozen=True)
class Evaluation:
    """None stands where a figure means nothing, or cannot be known."""

    data: str
    step: int  # of the weights
    loss: float
    targets: int | None = None  # tokens that were scored, each once
    conversations: int | None = None  # whose assistant's tokens those are
    accuracy: float | None = None
    cross_entropy: float | None = None  # in nats, where the loss is another
    perplexity: float | None = None
    bits_per_byte: float | None = None
    bytes: int | None = None
    window: int | None = None
    stride: int | None = None
    least_context: int | None = None  # tokens from which each was foretold, save at the beginning
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Passage:
    """Tokens to score, the bytes of their text where they are known, and what stands before the first."""

    data: str
    tokens: Tokens
    bytes: int | None
    start: int | None
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Asked:
    """What is to be judged, and how."""

    run: Run
    data: str | None
    reading: Reading
    checkpoint: str
    how: dict[str, Any]  # the model's backend and precision
    stride: int | None
    progress: Progress

    def model(self, **shape: Any) -> tuple[Model, Checkpoint, list[str]]:
        return self.run.model(self.checkpoint, **self.how, **shape)


def evaluate(
    opened: Run,
    data: str | None = None,
    *,
    reading: Reading | None = None,
    checkpoint: str = "best",
    backend: str = DEFAULT_BACKEND,
    precision: str | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
    kinds: Sequence[TaskKind] = KINDS,
) -> Evaluation:
    """On all that the run held out, or on `data`: a file or folder of text, conversations, or tokens of either.
    `checkpoint`: best, newest or the number of its step. `reading` says how text is taken out of files. Refused where
    what comes out is no number."""
    how = {"backend": backend, "precision": precision}
    progress = progress or (lambda what, done, total: None)
    asked = _Asked(opened, data, reading or Reading(), checkpoint, how, stride, progress)
    with np.errstate(all="ignore"):  # what NumPy would warn of is told below
        found = _evaluated(asked, kind_of(opened.request().settings.data, opened.folder, kinds))
    if isfinite(found.loss):
        return found
    weights = all_weights(opened.checkpoint(checkpoint)[0])
    name, largest = max(
        ((name, float(np.abs(array).max())) for name, array in weights.items()), key=lambda pair: pair[1]
    )
    raise NonFiniteError(
        f"the loss of {opened.folder} at step {found.step:,} is {found.loss:g}: its weights are finite, and what is "
        f"computed with them is not (the largest is {largest:.3g}, in {name}); take another checkpoint, or --precision "
        f"float64."
    )


def _evaluated(asked: _Asked, kind: TaskKind) -> Evaluation:
    opened, data = asked.run, asked.data
    if asked.reading != Reading() and (data is None or holds_tokens(Path(data)) or holds_conversations(Path(data))):
        name = next(name for name in READING_HELP if getattr(asked.reading, name))
        raise TapelessError(
            f"{name.replace('_', '-')} says how text is read, and {data or 'what was held out'} is tokens already: "
            f"leave it out."
        )
    if kind in (text.KIND, conversations.KIND):
        _check_foretells(opened)
        spoken = (kind if data is None else kind_of(data)) is conversations.KIND
        return _of_conversations(asked) if spoken else _of_text(asked)
    for name, given in (("data", data), ("stride", asked.stride)):
        if given is not None:
            raise TapelessError(
                f"{opened.folder} did not learn from text, so --{name} {given} says nothing of it: leave it out."
            )
    made = opened.spec()
    model, found, messages = asked.model(batch=made.batch, time=made.seq_len)
    measured = open_task(opened, kind).evaluate(model, ALL)
    return Evaluation(
        HELD_OUT,
        found.step,
        measured.loss,
        accuracy=measured.accuracy,
        cross_entropy=measured.cross_entropy,
        messages=messages,
    )


def _check_foretells(opened: Run) -> None:
    config = opened.preset().architecture
    if config.readout == "last" or not config.causal:
        raise TapelessError(f"{opened.folder} does not foretell the next token, so there is no text to judge it by.")


def _of_text(asked: _Asked) -> Evaluation:
    opened = asked.run
    config, spec = opened.preset().architecture, opened.tokenizer_spec()
    tokenizer = None if spec is None else load_tokenizer(spec)
    found, _ = opened.checkpoint(asked.checkpoint)  # before a long text is read for nothing
    passage = _held_out(opened, found.state) if asked.data is None else _given(asked, asked.data, tokenizer)
    _check_known(opened, passage.tokens, config.vocab)
    model, found, messages = asked.model(time=1)
    count = len(passage.tokens)
    scored = score_text(
        model,
        passage.tokens,
        opened.window(),
        stride=asked.stride,
        start=passage.start,
        told=lambda done: asked.progress("scoring", done, count),
    )
    size = passage.bytes
    return Evaluation(
        passage.data,
        found.step,
        **_figures(scored, config),
        bits_per_byte=scored.bits_per_byte(size) if size else None,
        bytes=size,
        window=scored.window,
        stride=scored.stride,
        least_context=scored.least_context,
        messages=[*messages, *passage.messages],
    )


def _figures(scored: Scored, config: Architecture) -> dict[str, Any]:
    return {
        "loss": scored.loss,
        "targets": scored.targets,
        "accuracy": scored.accuracy,
        "cross_entropy": scored.cross_entropy if config.loss != "cross_entropy" else None,
        "perplexity": scored.perplexity,
    }


def _of_conversations(asked: _Asked) -> Evaluation:
    """What the assistant says in them is scored, the rest is read."""
    opened, data = asked.run, asked.data
    if asked.stride is not None:
        given = data or f"what {opened.folder} held out"
        raise TapelessError(f"{given} is conversations, each read by itself: leave --stride out.")
    if asked.reading.field or asked.reading.column:
        raise TapelessError(f"{data} holds conversations, so no field or column of it is text: leave that out.")
    config = opened.preset().architecture
    opened.checkpoint(asked.checkpoint)  # before a long file is read for nothing
    told: list[str] = []
    if data is None:
        task = open_task(opened, conversations.KIND)
        assert isinstance(task, conversations.Conversations)
        rows, name = task.validation, HELD_OUT
    else:
        side, name, told = _spoken(opened, data, asked.reading, asked.progress)
        rows = PackedRows(side, opened.window(), config.packable)
    if cut := told_cut(rows):
        told.append(f"{cut}: it reads no more.")
    model, found, messages = asked.model(time=1)
    scored = score_rows(model, rows, told=lambda done: asked.progress("scoring", done, len(rows)))
    return Evaluation(
        name,
        found.step,
        **_figures(scored, config),
        conversations=sum(map(len, rows.rows)),
        window=rows.time,
        messages=[*messages, *told],
    )


def _spoken(opened: Run, data: str, reading: Reading, progress: Progress) -> tuple[Side, str, list[str]]:
    """All conversations of a file, or those that a folder of their tokens holds out; what it is called, and what should
    be known of it."""
    speech = speech_of(opened.folder, opened.tokenizer_spec())
    if holds_conversations(Path(data)):
        theirs = open_chats(Path(data))
        ours = speech.tokenizer
        if (ours.name, ours.specials) != (theirs.tokenizer.name, theirs.tokenizer.specials):
            raise TapelessError(
                f"{data} holds tokens of {theirs.tokenizer.name}, and {opened.folder} reads {ours.name}: give the "
                f"conversations themselves."
            )
        return theirs.validation, f"{HELD_OUT} in {data}", []
    whole = whole_chats(data, speech, reading, progress)
    left_out = told_left_out(whole.skipped, whole.examples)
    return whole.side(), data, [f"{left_out}."] if left_out else []


def _held_out(opened: Run, state: Any) -> _Passage:
    settings, folder = opened.request().settings, opened.data
    if not folder.exists():
        source = None if settings.data is None else user_path(settings.data)
        if source is None:
            raise TapelessError(
                f"{opened.folder} learned nothing here, so it held nothing out: name a text with --data."
            )
        if not holds_tokens(source):
            raise TapelessError(f"what {opened.folder} learned from, {source}, is not there: name a text with --data.")
        folder = source
    data = open_data(folder, validation=settings.validation)
    trained_on = state.get("run", {}).get("data") if isinstance(state.get("run"), dict) else None
    if trained_on not in (None, data.sha256):
        raise TapelessError(f"{folder} no longer holds the tokens that {opened.folder} was trained on: put them back.")
    return _Passage(HELD_OUT, data.validation, _bytes_held_out(folder), _end(data.tokenizer))


def _given(asked: _Asked, data: str, tokenizer: Tokenizer | None) -> _Passage:
    opened, path = asked.run, Path(data)
    if not holds_tokens(path):
        if tokenizer is None:
            raise TapelessError(f"{opened.folder} has no tokenizer to read text with: give tokens with --data.")
        return _encoded(data, asked.reading, tokenizer, asked.progress)
    path = user_path(path)
    found = open_data(path)
    if not path.is_dir():  # a single file is judged whole
        return _Passage(data, Tokens([*found.training.shards, *found.validation.shards]), None, None)
    if found.tokenizer is not None:
        _check_same_tokens(opened, path, found, tokenizer)
    return _Passage(f"{HELD_OUT} in {data}", found.validation, _bytes_held_out(path), _end(found.tokenizer))


def _check_same_tokens(opened: Run, path: Path, found: TokenData, tokenizer: Tokenizer | None) -> None:
    def model(spec: Path) -> Any:
        return read_json(spec, LARGEST_JSON, foreign=True).get("model")

    ours, theirs = tokenizer, found.tokenizer
    spec = opened.tokenizer_spec()
    same = ours is not None and theirs is not None and ours.vocab == theirs.vocab
    if same and isinstance(spec, Path):
        same = theirs is not None and theirs.name != "bytes" and model(spec) == model(path / "tokenizer.json")
    if not same:
        raise TapelessError(
            f"{path} holds tokens of another tokenizer than that of {opened.folder}: give the text itself."
        )


def _encoded(data: str, reading: Reading, tokenizer: Tokenizer, progress: Progress) -> _Passage:
    """All documents one after the other, each with its end, as in training."""
    corpus, done = find_documents(data, reading, progress=progress), 0
    parts: list[Array] = []
    lost = ""
    with closing(corpus):
        for piece, ends in corpus.documents.every_piece(range(len(corpus.documents))):
            (ids,) = tokenizer.encode_pieces([piece])
            parts += [ids.astype(np.uint32)] + [np.array([tokenizer.end], np.uint32)] * ends
            lost = lost or lost_in(piece.decode("utf-8"), ids, tokenizer)
            done += len(piece)
            progress("tokenising", done, corpus.size)
    left_out = told_left_out(corpus.skipped, corpus.examples)
    told = [f"{left_out}."] if left_out else []
    if lost:
        told.append(f"its tokenizer loses part of this text, {lost}; so there are no bits per byte.")
    return _Passage(data, Tokens([np.concatenate(parts)]), None if lost else corpus.size, tokenizer.end, told)


def _end(tokenizer: Tokenizer | None) -> int | None:
    return None if tokenizer is None else tokenizer.end


def _bytes_held_out(folder: Path) -> int | None:
    return metadata.read_meta(folder).validation.bytes if (folder / metadata.FILE).exists() else None


def _check_known(opened: Run, tokens: Tokens, vocab: int) -> None:
    largest = max((int(shard.max()) for shard in tokens.shards), default=0)
    if largest >= vocab:
        raise TapelessError(
            f"there is a token {largest:,} among these, and {opened.folder} knows those below {vocab:,}: give the text."
        )
