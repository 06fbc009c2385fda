"""Text to token ids and back: bytes, or whatever a tokenizer.json describes."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.plain import read_json
from tapeless.ops.contract import Array
from tapeless.tasks.data.files import LARGEST_JSON, user_path
from tapeless.tasks.data.tokenizer_bounds import USUAL_GROWTH, check_bounded
from tapeless.tasks.data.tokenizer_files import END_OF_TEXT, NamedTokens, read_named, write_named

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
TRIED = 512  # characters of a text that are normalised by themselves, where that could make much of them
SMALLEST_BPE = 257  # the bytes, and the end of a text
LARGEST_VOCAB = 1 << 24
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
_TRYING = Lock()
KEPT = 8  # ids that a stream decodes again for context: more than a character has bytes


class Tokenizer(ABC):
    """Ids are 0 … vocab − 1, and `end` stands between documents. Special tokens written in a text are plain text."""

    name: str
    vocab: int
    end: int
    end_text: str  # how the end is written where special tokens are read as such
    guessed: str = ""  # the end as a sentence's part, if no file says which token it is and its name was to go by
    begin: int | None = None  # the token that a text may begin with
    stops: tuple[int, ...]  # where writing stops: at the end, and where else the model's files say
    named: Mapping[str, str]  # how special tokens are written, by what transformers calls them, such as eos_token
    specials: Mapping[str, int]  # the special tokens, as they are written

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def encode_marked(self, text: str) -> tuple[Array, Array]:
        """The ids of a text in which special tokens are what they say, and (N, 2) from which character to which each
        reaches."""

    @abstractmethod
    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Array]:
        """The ids of several pieces of UTF-8, on all cores where that helps."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text; a character cut off becomes �, and an id that stands for no text gives none."""

    def stream(self) -> Speller:
        return Speller(self)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json into the folder, if there is anything to write, and `save_named`."""
        return

    def save_named(self, folder: Path) -> None:
        """Write beside a tokenizer.json what is known of its special tokens."""
        return


class Speller:
    """Ids in, one at a time; out comes the text that can no longer change."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0  # characters of the text of `_ids` that were given out

    def push(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        new = text[self._shown : _settled(text)]
        self._shown += len(new)
        if len(self._ids) > 4 * KEPT:
            held = len(text) - self._shown
            self._ids = self._ids[-KEPT:]
            self._shown = max(len(self._tokenizer.decode(self._ids)) - held, 0)
        return new

    def finish(self) -> str:
        """What was held back: a character that will not be completed any more."""
        rest = self._tokenizer.decode(self._ids)[self._shown :]
        self._ids, self._shown = [], 0
        return rest


def _settled(text: str) -> int:
    """How many characters cannot change: up to three bytes at the end may yet become a character."""
    settled = len(text)
    while settled > max(len(text) - 3, 0) and text[settled - 1] == UNDECODABLE:
        settled -= 1
    return settled


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8, and 256 for the end."""

    name = "bytes"
    vocab = 257
    end = 256
    end_text = END_OF_TEXT
    stops = (256,)
    named = MappingProxyType({"eos_token": END_OF_TEXT})
    specials = MappingProxyType({END_OF_TEXT: 256})

    def encode(self, text: str) -> list[int]:
        return list(_utf8(text))

    def encode_marked(self, text: str) -> tuple[Array, Array]:
        ids, spans, place = list[int](), list[tuple[int, int]](), 0
        for part in re.split(f"({re.escape(END_OF_TEXT)})", text):
            if part == END_OF_TEXT:
                ids.append(self.end)
                spans.append((place, place + len(part)))
            else:
                for offset, character in enumerate(part, place):
                    encoded = _utf8(character)
                    ids += encoded
                    spans += [(offset, offset + 1)] * len(encoded)
            place += len(part)
        return np.array(ids, np.int64), np.array(spans, np.int64).reshape(-1, 2)

    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Array]:
        return [np.frombuffer(piece, np.uint8) for piece in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(token for token in ids if 0 <= token < 256).decode("utf-8", "replace")

    def as_json(self) -> bytes:
        """The same as a tokenizer.json, for others: every byte a token under the character that byte-level BPE has
        for it, nothing to merge, and no splitting that could matter."""
        package = _package()
        from tokenizers import decoders, models, pre_tokenizers

        spelled = {byte: character for character, byte in byte_characters().items()}
        model = package.Tokenizer(models.BPE({spelled[byte]: byte for byte in range(256)}, []))
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.decoder = decoders.ByteLevel()
        model.add_special_tokens([END_OF_TEXT])
        text: str = model.to_str()
        return text.encode()


def byte_characters() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: themselves where they show, else the next that do."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(others)}


class JsonTokenizer(Tokenizer):
    """What a tokenizer.json describes, by Hugging Face tokenizers."""

    def __init__(
        self, model: tokenizers.Tokenizer, kind: str, origin: str, told: NamedTokens, growth: float = 1
    ) -> None:
        ids = model.get_vocab(with_added_tokens=True)
        if not ids:
            raise TapelessError(f"{origin} has no vocabulary.")
        if len(set(ids.values())) < len(ids):
            raise TapelessError(f"{origin} gives one id to several tokens: make the ids distinct.")
        self.vocab = max(ids.values()) + 1
        if self.vocab > LARGEST_VOCAB:
            raise TapelessError(f"{origin} uses the id {self.vocab - 1:,}, but ids must lie below {LARGEST_VOCAB:,}.")
        end, self.guessed = told.end(origin, ids)
        begin = told.begin(ids)
        self.end, self.end_text = ids[end], end
        self.begin = None if begin is None else ids[begin]
        self.stops = tuple(dict.fromkeys([self.end, *(each for each in told.stops if 0 <= each < self.vocab)]))
        both = {"eos_token": end} | ({} if begin is None else {"bos_token": begin})
        self.named = dict(told.tokens) | both
        model.add_special_tokens([*both.values()])  # as transformers does where tokenizer.json has them as words alone
        added = model.get_added_tokens_decoder()
        self.specials = {token.content: number for number, token in added.items() if token.special}
        self.specials |= {each: ids[each] for each in both.values()}
        self.name = f"{kind.lower()}-{self.vocab}"
        model.encode_special_tokens = True  # a text that spells the end token out does not end there
        self._model, self._origin, self._growth = model, origin, growth

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.encode_pieces([_utf8(text)])[0]]

    def encode_marked(self, text: str) -> tuple[Array, Array]:
        _utf8(text)
        self._check_growth(text)
        with _refused_by(self._origin, "cannot encode this text"):
            found = self._marking.encode(text, add_special_tokens=False)
        return np.array(found.ids, np.int64), np.array(found.offsets, np.int64).reshape(-1, 2)

    @cached_property
    def _marking(self) -> tokenizers.Tokenizer:
        """The same, to which special tokens in a text are special."""
        made: tokenizers.Tokenizer = _package().Tokenizer.from_str(self._model.to_str())
        made.encode_special_tokens = False
        return made

    def encode_pieces(self, pieces: Sequence[bytes]) -> list[Array]:
        texts = [piece.decode("utf-8") for piece in pieces]
        for text in texts:
            self._check_growth(text)
        with _refused_by(self._origin, "cannot encode this text"):
            encoded = self._model.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, np.uint32) for one in encoded]

    def _check_growth(self, text: str) -> None:
        """What a normalizer could make very long is tried on the beginning of a text before all of it is."""
        if self._growth > USUAL_GROWTH and self._model.normalizer is not None:
            with _refused_by(self._origin, "cannot encode this text"):
                tried = self._model.normalizer.normalize_str(text[:TRIED])
            if len(tried) > USUAL_GROWTH * (min(len(text), TRIED) + 1):
                raise TapelessError(
                    f"{self._origin} makes {len(tried):,} characters of {min(len(text), TRIED):,} before it reads "
                    f"them, more than {USUAL_GROWTH} times as many: it is not used."
                )

    def decode(self, ids: Iterable[int]) -> str:
        known = [int(token) for token in ids if 0 <= token < self.vocab]
        with _refused_by(self._origin, "cannot decode these ids"):
            return self._model.decode(known, skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        write_whole(folder / FILE, self._model.to_str().encode())
        self.save_named(folder)

    def save_named(self, folder: Path) -> None:
        """A guess stays one: it is written nowhere."""
        if not self.guessed:
            write_named(folder, self.named, self.stops if len(self.stops) > 1 else ())


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """`bytes`, a tokenizer.json, or a folder that holds one."""
    if spec == "bytes":
        return ByteTokenizer()
    if not str(spec) or "\0" in str(spec):
        raise TapelessError(f"{str(spec)!r} is no tokenizer: say bytes, or give the path of a {FILE}.")
    path = user_path(spec)
    try:
        if path.is_dir():
            path = path / FILE
            if not path.is_file():
                raise TapelessError(f"{path.parent} holds no {FILE}: give a folder that does, or say bytes.")
        if not path.exists():
            raise TapelessError(f"there is no tokenizer {spec}: say bytes, or give the path of a {FILE}.")
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    content = read_json(path, LARGEST_JSON, foreign=True)
    model = content.get("model")
    if not isinstance(model, dict):
        raise TapelessError(f"{path} describes no model, so it is no tokenizer.json of Hugging Face tokenizers.")
    # Settings that shorten, lengthen or randomise what a text becomes have no place in a corpus.
    content["truncation"] = content["padding"] = None
    model.pop("dropout", None)
    growth = check_bounded(str(path), content)
    told = read_named(path.parent) if path.name == FILE else NamedTokens()
    package = _package()
    with _standard_error_closed():
        with _refused_by(str(path), "is no tokenizer that can be read"):
            inner = package.Tokenizer.from_str(json.dumps(content))
        tokenizer = JsonTokenizer(inner, type(inner.model).__name__, str(path), told, growth)
        tokenizer.decode(tokenizer.encode("a line, 1 number\n"))
    return tokenizer


def lost_in(words: str, ids: Iterable[int], tokenizer: Tokenizer) -> str:
    """What of a text does not come back from its tokens, as the end of a sentence; nothing where all of it does."""
    if tokenizer.name == "bytes" or tokenizer.decode(ids) == words:
        return ""
    for each in dict.fromkeys(words):
        back = tokenizer.decode(tokenizer.encode(each))
        if back.strip() != each.strip():
            return f"such as {each!r}, which comes back as {back!r}"
    return "as it spells it otherwise"


def train_bpe(texts: Iterator[str], vocab: int) -> Tokenizer:
    """Byte-level BPE learned from the texts; a small corpus may give fewer than `vocab` tokens."""
    check_bpe_vocab(vocab)
    package = _package()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    model = package.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    model.train_from_iterator(texts, trainer)
    return JsonTokenizer(model, "bpe", "the trained tokenizer", NamedTokens({"eos_token": END_OF_TEXT}))


def check_bpe_vocab(vocab: Any) -> None:
    if isinstance(vocab, bool) or not isinstance(vocab, int) or not SMALLEST_BPE <= vocab <= LARGEST_VOCAB:
        raise TapelessError(
            f"vocab must be a whole number from {SMALLEST_BPE} (bytes and the end) to {LARGEST_VOCAB:,}, not {vocab!r}."
        )


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF:  # how Python passes on a byte of a command line that it could not decode
            what = f"the byte 0x{code - 0xDC00:x} at {error.start:,}, which is not UTF-8: give text in UTF-8"
        else:
            what = f"half a surrogate pair, {text[error.start]!r} at {error.start:,}, which is no character"
        raise TapelessError(f"the text holds {what}.") from None


def _package() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise TapelessError("this tokenizer needs the tokenizers package: pip install tokenizers.") from None
    return tokenizers


@contextmanager
def _refused_by(origin: str, what: str) -> Iterator[None]:
    """Whatever the tokenizers package finds wrong becomes one sentence; its panics derive from BaseException."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split())[:200]
        raise TapelessError(f"{origin} {what}: {reason}.") from None


@contextmanager
def _standard_error_closed() -> Iterator[None]:
    """The package's panics write a trace to file 2 by themselves; while a tokenizer is tried, it goes nowhere."""
    with _TRYING:  # two at once would restore the wrong file
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
