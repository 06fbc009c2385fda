"""meta.json: what stands in a folder of prepared tokens."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.plain import read_json
from tapeless.tasks.data.files import LARGEST_JSON
from tapeless.tasks.data.tokenizer import LARGEST_VOCAB

FILE = "meta.json"
FORMAT = "tapeless tokens"
VERSION = 1
DTYPES = {"uint16": "<u2", "uint32": "<u4"}


@dataclass(frozen=True)
class Shard:
    """One file of ids and nothing else, little-endian."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Split:
    documents: int
    bytes: int
    tokens: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Meta:
    source: str
    seed: int
    tokenizer: str
    vocab: int
    end: int
    dtype: str
    training: Split
    validation: Split
    skipped: dict[str, int]
    examples: dict[str, str] = field(default_factory=dict)  # of what was left out, one for each reason


def dtype_for(vocab: int) -> str:
    return "uint16" if vocab <= 1 << 16 else "uint32"


def write_meta(folder: Path, meta: Meta) -> None:
    content = {"format": FORMAT, "version": VERSION, **asdict(meta)}
    write_whole(folder / FILE, json.dumps(content, indent=2).encode() + b"\n")


def read_meta(folder: Path) -> Meta:
    """The description, every field checked."""
    path = folder / FILE
    content = read_json(path, LARGEST_JSON)
    if content.get("format") != FORMAT:
        raise TapelessError(f"{path} does not describe tokens that tapeless prepared: run tapeless tokenize.")
    if content.get("version") != VERSION:
        raise TapelessError(
            f"{path} has version {content.get('version')!r}, and this tapeless reads {VERSION}: tokenize again."
        )
    fields = Fields(path, "", content)
    skipped = fields.of("skipped", dict)
    examples = fields.of("examples", dict)
    vocab = fields.count("vocab", least=1)
    if vocab > LARGEST_VOCAB:
        raise fields.wrong("vocab", f"at most {LARGEST_VOCAB:,}")
    end = fields.count("end")
    if end >= vocab:
        raise fields.wrong("end", f"below the vocabulary's {vocab:,}")
    dtype = fields.text("dtype")
    if dtype != dtype_for(vocab):
        raise fields.wrong("dtype", f"{dtype_for(vocab)!r} for a vocabulary of {vocab:,}")
    return Meta(
        source=fields.text("source"),
        seed=fields.count("seed"),
        tokenizer=fields.text("tokenizer"),
        vocab=vocab,
        end=end,
        dtype=dtype,
        training=_split(fields.inside("training")),
        validation=_split(fields.inside("validation")),
        skipped={reason: Fields(path, "skipped.", skipped).count(reason) for reason in skipped},
        examples={reason: Fields(path, "examples.", examples).text(reason) for reason in examples},
    )


@dataclass(frozen=True)
class Fields:
    """An object of a JSON file whose fields are taken with the type they must have."""

    path: Path
    prefix: str
    content: dict[str, Any]

    def of(self, name: str, kind: type) -> Any:
        value = self.content.get(name)
        # JSON's true is an int to Python, and nowhere a count.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(name, {dict: "an object", list: "a list", str: "a text", int: "a whole number"}[kind])
        return value

    def text(self, name: str) -> str:
        value: str = self.of(name, str)
        return value

    def count(self, name: str, least: int = 0) -> int:
        value: int = self.of(name, int)
        if value < least:
            raise self.wrong(name, f"at least {least}")
        return value

    def inside(self, name: str) -> Fields:
        return Fields(self.path, f"{self.prefix}{name}.", self.of(name, dict))

    def wrong(self, name: str, wanted: str) -> TapelessError:
        value = repr(self.content[name])[:60] if name in self.content else "missing"
        return TapelessError(f"{self.path} is damaged: {self.prefix}{name} must be {wanted}, and is {value}.")


def _split(fields: Fields) -> Split:
    shards = []
    for number, entry in enumerate(fields.of("shards", list)):
        if not isinstance(entry, dict):
            raise fields.wrong("shards", "a list of objects")
        shard = Fields(fields.path, f"{fields.prefix}shards[{number}].", entry)
        if not re.fullmatch(r"[a-z]+-\d+\.bin", shard.text("file")):
            raise shard.wrong("file", "a name such as training-0000.bin")
        if not re.fullmatch(r"[0-9a-f]{64}", shard.text("sha256")):
            raise shard.wrong("sha256", "64 hexadecimal digits")
        shards.append(Shard(shard.text("file"), shard.count("tokens", least=1), shard.text("sha256")))
    if not shards:
        raise fields.wrong("shards", "a list with at least one shard")
    if len({shard.file for shard in shards}) < len(shards):
        raise fields.wrong("shards", "a list without repetition")
    tokens = fields.count("tokens")
    if tokens != sum(shard.tokens for shard in shards):
        raise fields.wrong("tokens", f"the sum over the shards, {sum(shard.tokens for shard in shards):,}")
    return Split(fields.count("documents", least=1), fields.count("bytes", least=1), tokens, tuple(shards))
