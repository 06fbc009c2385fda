"""meta.json: what stands in a folder of prepared tokens. And how a dataclass is written as JSON and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.plain import read_json
from tapeless.tasks.data.files import LARGEST_JSON
from tapeless.tasks.data.tokenizer import LARGEST_VOCAB

FILE = "meta.json"
FORMAT = "tapeless tokens"
VERSION = 1
DTYPES = {"uint16": "<u2", "uint32": "<u4"}
KINDS = {dict: "an object", tuple: "a list", str: "a text", int: "a whole number"}

T = TypeVar("T")


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


def write_dataclass(path: Path, content: Any, format: str, version: int) -> None:
    """As JSON, for `read_dataclass`."""
    said = {"format": format, "version": version, **asdict(content)}
    write_whole(path, json.dumps(said, indent=2).encode() + b"\n")


def read_dataclass(path: Path, kind: type[T], format: str, version: int) -> T:
    """A dataclass as `write_dataclass` wrote it, every field found to be of its type, and no number below 0."""
    content = read_json(path, LARGEST_JSON)
    if content.get("format") != format:
        raise TapelessError(f"{path} does not describe {format.removeprefix('tapeless ')}: run tapeless tokenize.")
    if content.get("version") != version:
        raise TapelessError(
            f"{path} has version {content.get('version')!r}, and this tapeless reads {version}: tokenize again."
        )
    found: T = _fields(path, "", content, kind)
    return found


def _fields(path: Path, prefix: str, content: Mapping[str, Any], kind: Any) -> Any:
    types = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    return kind(**{name: _field(path, prefix + name, content.get(name, ...), types[name]) for name in names})


def _field(path: Path, name: str, value: Any, kind: Any) -> Any:
    plain: Any = dict if is_dataclass(kind) else get_origin(kind) or kind
    stored: Any = list if plain is tuple else plain
    if type(value) is not stored:
        raise damaged(path, name, value, KINDS[plain])
    if is_dataclass(kind):
        return _fields(path, f"{name}.", value, kind)
    if plain is int and value < 0:
        raise damaged(path, name, value, "at least 0")
    if plain is tuple:
        return tuple(_field(path, f"{name}[{at}]", each, get_args(kind)[0]) for at, each in enumerate(value))
    if plain is dict:
        return {key: _field(path, f"{name}.{key}", each, get_args(kind)[1]) for key, each in value.items()}
    return value


def damaged(path: Path, name: str, value: Any, wanted: str) -> TapelessError:
    found = "missing" if value is ... else repr(value)[:60]
    return TapelessError(f"{path} is damaged: {name} must be {wanted}, and is {found}.")


def read_meta(folder: Path) -> Meta:
    """The description, found to be one of tokens that can be read."""
    path = folder / FILE
    meta = read_dataclass(path, Meta, FORMAT, VERSION)
    if not 1 <= meta.vocab <= LARGEST_VOCAB:
        raise damaged(path, "vocab", meta.vocab, f"at least 1 and at most {LARGEST_VOCAB:,}")
    if meta.end >= meta.vocab:
        raise damaged(path, "end", meta.end, f"below the vocabulary's {meta.vocab:,}")
    if meta.dtype != dtype_for(meta.vocab):
        raise damaged(path, "dtype", meta.dtype, f"{dtype_for(meta.vocab)!r} for a vocabulary of {meta.vocab:,}")
    for name in ("training", "validation"):
        _check_split(path, name, getattr(meta, name))
    return meta


def _check_split(path: Path, name: str, split: Split) -> None:
    for count in ("documents", "bytes"):
        if getattr(split, count) < 1:
            raise damaged(path, f"{name}.{count}", getattr(split, count), "at least 1")
    for number, shard in enumerate(split.shards):
        where = f"{name}.shards[{number}]"
        if not re.fullmatch(r"[a-z]+-\d+\.bin", shard.file):
            raise damaged(path, f"{where}.file", shard.file, "a name such as training-0000.bin")
        if not re.fullmatch(r"[0-9a-f]{64}", shard.sha256):
            raise damaged(path, f"{where}.sha256", shard.sha256, "64 hexadecimal digits")
        if shard.tokens < 1:
            raise damaged(path, f"{where}.tokens", shard.tokens, "at least 1")
    if not split.shards or len({shard.file for shard in split.shards}) < len(split.shards):
        raise damaged(path, f"{name}.shards", split.shards, "a list with at least one shard, each of another name")
    if split.tokens != sum(shard.tokens for shard in split.shards):
        raise damaged(path, f"{name}.tokens", split.tokens, "the sum over the shards")
