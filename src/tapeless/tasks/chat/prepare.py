"""From a file of conversations to a folder of their tokens, and back from there."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import made_whole
from tapeless.files.plain import open_plain
from tapeless.files.safetensors import read_safetensors, write_safetensors
from tapeless.inputs import check_seed
from tapeless.ops.contract import Array
from tapeless.tasks.chat.layouts import Conversation, read_conversations
from tapeless.tasks.chat.template import Chat, chat_beside
from tapeless.tasks.chat.turns import SpecialError, Speech, Turns
from tapeless.tasks.data.corpus import check_share
from tapeless.tasks.data.files import user_path
from tapeless.tasks.data.meta import damaged, read_dataclass, write_dataclass
from tapeless.tasks.data.prepare import check_free, learned_size
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.shuffle import held_out, order, random_bits
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer, train_bpe
from tapeless.tasks.task import Progress

FILE = "conversations.json"
FORMAT, VERSION = "tapeless conversations", 1
SIDES = ("training", "validation")
TOLD_EVERY = 64  # conversations


@dataclass(frozen=True)
class Side:
    """Conversations one after the other: ids, of each whether it is learned, and how long each conversation is."""

    ids: Array
    learned: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Counted:
    conversations: int
    tokens: int
    learned: int
    sha256: str


@dataclass(frozen=True)
class About:
    source: str
    seed: int
    tokenizer: str
    vocab: int
    training: Counted
    validation: Counted
    skipped: dict[str, int]
    examples: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatData:
    about: About
    training: Side
    validation: Side
    tokenizer: Tokenizer
    chat: Chat


def holds_conversations(folder: Path) -> bool:
    """Whether it is a folder that `prepare_chats` made."""
    try:
        return (user_path(folder) / FILE).is_file()
    except OSError:
        return False


def chosen_speech(source: str, tokenizer: str, vocab: int | None, encoding: str | None) -> Speech:
    """By what conversations are read: `bytes`, `bpe` (learned from their words), or a tokenizer.json with what lies
    beside it."""
    size = learned_size(tokenizer, vocab)
    if size is None:
        given = load_tokenizer(tokenizer)
        return Speech(chat_beside(tokenizer, given), given)
    words = (str(said["content"]) for each in read_conversations(source, encoding) for said in each.messages)
    learned = train_bpe(words, size)
    return Speech(chat_beside("bpe", learned), learned)


def prepare_chats(
    source: str,
    out: Path,
    *,
    tokenizer: str = "bytes",
    vocab: int | None = None,
    validation: float = 0.1,
    seed: int = 0,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> About:
    """Whole conversations to train on and whole conversations held out, in the new folder `out`."""
    check_seed(seed)
    check_share(validation)
    reading = reading or Reading()
    reading.validate()
    check_free(out)
    speech = chosen_speech(source, tokenizer, vocab, reading.encoding)
    found = _gathered(source, speech, reading, progress or (lambda what, done, total: None))
    held = _held(found, validation, seed, source)
    with made_whole(out) as folder:
        return _write(folder, source, seed, speech, found, held)


def whole_chats(source: str, speech: Speech, reading: Reading, progress: Progress) -> TokenizedChats:
    """All conversations of a file, none held out, as a model that is spoken with so reads them."""
    reading.validate()
    found = _gathered(source, speech, reading, progress)
    if not found.ids:
        raise TapelessError(f"{source} holds no conversation to judge by{_told_skipped(found)}: give some.")
    return found


@dataclass
class TokenizedChats:
    """The conversations of a file, and how many were left out for which reason, each with one for an example."""

    ids: list[Array] = field(default_factory=list)
    learned: list[Array] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def skip(self, reason: str, place: str) -> None:
        self.skipped[reason] += 1
        self.examples.setdefault(reason, place)

    def side(self, chosen: Array | None = None) -> Side:
        """All of them, or those that are `chosen`."""
        numbers = range(len(self.ids)) if chosen is None else np.flatnonzero(chosen)
        ids, learned = (np.concatenate([each[number] for number in numbers]) for each in (self.ids, self.learned))
        return Side(ids, learned, np.array([len(self.ids[number]) for number in numbers], np.int64))


def _gathered(source: str, speech: Speech, reading: Reading, progress: Progress) -> TokenizedChats:
    found, seen = TokenizedChats(), set[bytes]()
    dtype = "<u2" if speech.tokenizer.vocab <= 1 << 16 else "<u4"
    for number, conversation in enumerate(read_conversations(source, reading.encoding)):
        try:
            turns = placed(speech, conversation)
        except SpecialError:
            found.skip("that spell a special token", conversation.place)
            continue
        last = np.flatnonzero(turns.learned[1:]) + 1  # the first token follows nothing, and is never learned
        if not len(last):
            found.skip("without words to learn", conversation.place)
            continue
        ids = turns.ids[: last[-1] + 1].astype(dtype)  # what follows the last answer is of no use
        digest = hashlib.sha256(ids.tobytes()).digest()
        if digest in seen and reading.drop_duplicates:
            found.skip("duplicate", conversation.place)
            continue
        seen.add(digest)
        found.ids.append(ids)
        found.learned.append(turns.learned[: len(ids)])
        found.digests.append(digest)
        if number % TOLD_EVERY == 0:
            progress("reading conversations", number, 0)
    return found


def placed(speech: Speech, conversation: Conversation) -> Turns:
    """Its turns; what is wrong with them is said with where it stands."""
    try:
        return speech.turns(conversation)
    except TapelessError as error:
        raise type(error)(f"{conversation.place}: {error}") from None


def _held(found: TokenizedChats, share: float, seed: int, source: str) -> Array:
    """Which are held out; those that are the same go together."""
    numbers: dict[bytes, int] = {}
    text_of = np.array([numbers.setdefault(digest, len(numbers)) for digest in found.digests], np.int64)
    if len(numbers) < 2:
        raise TapelessError(
            f"{source} holds {len(numbers)} conversation{'s' * (len(numbers) != 1)}{_told_skipped(found)}, and one is "
            f"to be held out: give more."
        )
    sizes = np.zeros(len(numbers), np.int64)
    np.add.at(sizes, text_of, [len(ids) for ids in found.ids])
    held: Array = held_out(sizes, order(random_bits(seed), len(numbers)).tolist(), share)[text_of]
    return held


def _told_skipped(found: TokenizedChats) -> str:
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in found.skipped.items())
    return f" ({left_out} left out)" if left_out else ""


def _write(folder: Path, source: str, seed: int, speech: Speech, found: TokenizedChats, held: Array) -> About:
    counted = {}
    for name, side in zip(SIDES, (found.side(~held), found.side(held)), strict=True):
        written = write_safetensors(folder / f"{name}.safetensors", vars(side))
        counted[name] = Counted(len(side), len(side.ids), int(side.learned.sum()), written.sha256)
    speech.tokenizer.save(folder)
    speech.chat.save(folder)
    known = speech.tokenizer
    about = About(
        source, seed, known.name, known.vocab, **counted, skipped=dict(found.skipped), examples=found.examples
    )
    write_dataclass(folder / FILE, about, FORMAT, VERSION)  # the last file
    return about


def open_chats(folder: Path) -> ChatData:
    """What `prepare_chats` made, found to be whole."""
    folder = user_path(folder)
    try:
        about = _read_about(folder / FILE)
        tokenizer = load_tokenizer("bytes" if about.tokenizer == "bytes" else folder)
        if (tokenizer.name, tokenizer.vocab) != (about.tokenizer, about.vocab):
            raise TapelessError(f"{folder} is damaged: its tokenizer is not the one that {FILE} names.")
        sides = [_read_side(folder / f"{name}.safetensors", getattr(about, name), about.vocab) for name in SIDES]
        return ChatData(about, sides[0], sides[1], tokenizer, chat_beside(folder / "tokenizer.json", tokenizer))
    except OSError as error:
        raise TapelessError(f"cannot read {error.filename or folder}: {error.strerror}.") from None


def _read_about(path: Path) -> About:
    about = read_dataclass(path, About, FORMAT, VERSION)
    for name in SIDES:
        for what, count in vars(getattr(about, name)).items():
            if count == 0:
                raise damaged(path, f"{name}.{what}", count, "at least 1")
    return about


def _read_side(path: Path, counted: Counted, vocab: int) -> Side:
    with open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != counted.sha256:
        raise TapelessError(f"{path} is not what was written: its SHA-256 differs from that in {FILE}.")
    tensors = read_safetensors(path)
    if set(tensors) != {"ids", "learned", "lengths"}:
        raise TapelessError(f"{path} is damaged: it must hold ids, learned and lengths.")
    side = Side(tensors["ids"], tensors["learned"].astype(bool), tensors["lengths"])
    whole = (
        all(array.ndim == 1 for array in vars(side).values())
        and len(side) == counted.conversations
        and len(side.ids) == len(side.learned) == counted.tokens == side.lengths.sum()
        and (side.lengths > 1).all()
        and int(side.ids.max()) < vocab
    )
    if not whole:
        raise TapelessError(f"{path} is damaged: what it holds does not fit together; tokenize again.")
    return side


def shown_first(source: str, speech: Speech, count: int, encoding: str | None) -> Iterator[tuple[str, Turns]]:
    """The first conversations, each with where it stands, as they would be learned."""
    for number, conversation in enumerate(read_conversations(source, encoding)):
        if number == count:
            return
        yield conversation.place, placed(speech, conversation)
