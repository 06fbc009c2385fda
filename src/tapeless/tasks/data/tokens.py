"""Tokens on disk as one memory-mapped sequence: prepared folders, and the .bin files of nanoGPT and llm.c."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops.contract import Array
from tapeless.tasks.data import meta as metadata
from tapeless.tasks.data.corpus import check_share
from tapeless.tasks.data.files import user_path
from tapeless.tasks.data.tokenizer import LARGEST_VOCAB, Tokenizer, load_tokenizer

HEADER_BYTES = 1024  # llm.c: 256 numbers of 32 bits, of which three are used
LAYOUTS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # llm.c's magic numbers: version, type of the ids
RAW = "<u2"  # nanoGPT: ids and nothing else
AT_ONCE = 1 << 24  # bytes looked at together
FOREIGN = {b"\x93NUMPY": "a NumPy array", b"\x1f\x8b": "compressed by gzip", b"PK\x03\x04": "a zip archive"}


class Tokens:
    """Ids of one or several shards, one after the other; nothing is read before it is asked for."""

    def __init__(self, shards: Sequence[Array]) -> None:
        self.shards = tuple(shards)
        self._ends = list(accumulate(len(shard) for shard in self.shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def window(self, start: int, length: int) -> Array:
        """`length` ids from `start`, int64, across the edges of shards."""
        if start < 0 or length < 0 or start + length > len(self):
            raise TapelessError(f"there are {len(self):,} tokens, so none are at {start} … {start + length - 1}.")
        result = np.empty(length, np.int64)
        index, filled = bisect_right(self._ends, start), 0
        while filled < length:
            shard = self.shards[index]
            begin = max(start - (self._ends[index] - len(shard)), 0)
            part = shard[begin : begin + length - filled]
            result[filled : filled + len(part)] = part
            filled += len(part)
            index += 1
        return result

    def cut(self, place: int) -> tuple[Tokens, Tokens]:
        """The tokens before `place`, and those from there."""
        before, after = [], []
        for end, shard in zip(self._ends, self.shards, strict=True):
            inside = min(max(place - (end - len(shard)), 0), len(shard))
            before.append(shard[:inside])
            after.append(shard[inside:])
        return Tokens([part for part in before if len(part)]), Tokens([part for part in after if len(part)])


@dataclass(frozen=True)
class TokenData:
    """Tokens to train on and tokens held out. `sha256` is of all their ids, for telling one data set from another."""

    training: Tokens
    validation: Tokens
    vocab: int
    tokenizer: Tokenizer | None
    sha256: str
    skipped: Mapping[str, int] = field(default_factory=dict)  # what was left out of the text, by reason
    examples: Mapping[str, str] = field(default_factory=dict)  # one of each


def holds_tokens(path: Path) -> bool:
    """Whether `open_data` is meant for it; else it is text, for `prepare`."""
    path = user_path(path)
    try:
        if not path.is_dir():
            return path.suffix == ".bin"
        named = (path / name for name in (metadata.FILE, "train.bin", "val.bin"))
        return any(file.is_file() for file in named) or bool(_llm_c_files(path, "train"))
    except OSError:  # a name too long, a folder that may not be looked into: whoever opens it will say so
        return False


def open_data(path: Path, *, validation: float = 0.1) -> TokenData:
    """Open prepared tokens, a nanoGPT folder, an llm.c folder, or one .bin, of which the last share is held out.

    Every id is read once: a damaged shard, or an id outside the vocabulary, is found here and not during training.
    """
    check_share(validation)
    path = user_path(path)
    try:
        if path.is_dir():
            if (path / metadata.FILE).exists():
                return _prepared(path)
            return _folder_of_bins(path)
        if not path.exists():
            raise TapelessError(f"there is no {path}: give a folder that tapeless tokenize made, or a .bin file.")
        if path.suffix != ".bin":
            raise TapelessError(f"{path} is no .bin of tokens: if it is text, run tapeless tokenize on it first.")
        return _single_bin(path, validation)
    except OSError as error:
        raise TapelessError(f"cannot read {error.filename or path}: {error.strerror}.") from None


def _prepared(folder: Path) -> TokenData:
    meta = metadata.read_meta(folder)
    tokenizer = load_tokenizer("bytes" if meta.tokenizer == "bytes" else folder)
    for name in ("name", "vocab", "end"):
        described = meta.tokenizer if name == "name" else getattr(meta, name)
        if getattr(tokenizer, name) != described:
            raise TapelessError(
                f"{folder} is damaged: its tokenizer has {name} {getattr(tokenizer, name)!r}, "
                f"and meta.json says {described!r}."
            )
    splits, digests = [], []
    for split in (meta.training, meta.validation):
        opened = []
        for shard in split.shards:
            file = folder / shard.file
            ids = _mapped(file, metadata.DTYPES[meta.dtype], 0)
            if len(ids) != shard.tokens:
                raise TapelessError(f"{file} holds {len(ids):,} tokens, and meta.json says {shard.tokens:,}.")
            largest, digest = _survey(ids)
            if largest >= meta.vocab:
                raise TapelessError(f"{file} holds the id {largest}, outside the vocabulary of {meta.vocab:,}.")
            if digest != shard.sha256:
                raise TapelessError(f"{file} is not what was written: its SHA-256 differs from that in meta.json.")
            opened.append(ids)
            digests.append(digest)
        splits.append(Tokens(opened))
    return TokenData(
        splits[0], splits[1], meta.vocab, tokenizer, _joined(digests), skipped=meta.skipped, examples=meta.examples
    )


def _folder_of_bins(folder: Path) -> TokenData:
    if (folder / "train.bin").exists() or (folder / "val.bin").exists():
        training, held_out, needs_header = [folder / "train.bin"], [folder / "val.bin"], False
        missing = [file.name for file in training + held_out if not file.exists()]
    else:
        training, held_out, needs_header = _llm_c_files(folder, "train"), _llm_c_files(folder, "val"), True
        if not training + held_out:
            raise TapelessError(f"{folder} holds no tokens: if it holds text, run tapeless tokenize on it first.")
        missing = [f"*_{kind}_*.bin" for kind, files in (("train", training), ("val", held_out)) if not files]
        names = {re.sub(r"_(train|val)(_.*)?\.bin$", "", file.name) for file in training + held_out}
        if len(names) > 1:
            raise TapelessError(f"{folder} holds several sets of tokens ({', '.join(sorted(names))}): keep one.")
    if missing:
        raise TapelessError(f"{folder} holds no {missing[0]}: tokens to train on and tokens to validate are needed.")
    return _without_tokenizer(
        [_read_bin(file, needs_header) for file in training], [_read_bin(file, needs_header) for file in held_out]
    )


def _llm_c_files(folder: Path, kind: str) -> list[Path]:
    return sorted([*folder.glob(f"*_{kind}_*.bin"), *folder.glob(f"*_{kind}.bin")])


def _single_bin(path: Path, validation: float) -> TokenData:
    tokens = Tokens([_read_bin(path)])
    training, held_out = tokens.cut(len(tokens) - max(round(len(tokens) * validation), 1))
    return _without_tokenizer(training.shards, held_out.shards)


def _without_tokenizer(training: Sequence[Array], held_out: Sequence[Array]) -> TokenData:
    """Bare ids: the vocabulary reaches as far as the largest of them."""
    for name, shards in (("training", training), ("validation", held_out)):
        count = sum(len(shard) for shard in shards)
        if count < 2:
            raise TapelessError(f"there are {count} tokens for {name}, and a target needs 2: give more tokens.")
    surveys = [_survey(shard) for shard in (*training, *held_out)]
    largest = max(largest for largest, _ in surveys)
    if largest >= LARGEST_VOCAB:
        raise TapelessError(f"the shards hold the id {largest}, but ids must lie below {LARGEST_VOCAB:,}.")
    return TokenData(Tokens(training), Tokens(held_out), largest + 1, None, _joined([digest for _, digest in surveys]))


def _read_bin(path: Path, needs_header: bool = False) -> Array:
    """The ids of llm.c's layout where its header is, else of nanoGPT's."""
    if not path.is_file():
        raise TapelessError(f"{path} is no file: give a .bin of tokens.")
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    for mark, kind in FOREIGN.items():
        if head.startswith(mark):
            raise TapelessError(f"{path} is {kind}, not a .bin of tokens: write the ids as plain 16-bit numbers.")
    magic = int.from_bytes(head[:4], "little")
    if magic in LAYOUTS:
        return _read_llm_c(path, head, *LAYOUTS[magic])
    if int.from_bytes(head[:4], "big") in LAYOUTS:
        raise TapelessError(f"{path} was written on a big-endian machine: swap the bytes of each number.")
    ids = _mapped(path, RAW, 0)
    if needs_header or _looks_like_header(head):
        known = " or ".join(map(str, LAYOUTS))
        raise TapelessError(f"{path} begins with {magic}, and llm.c's files of tokens with {known}: give those.")
    if _looks_wider(ids[:4096]):
        raise TapelessError(f"{path} seems to hold numbers of 32 or 64 bits: write the ids as 16-bit numbers.")
    return ids


def _looks_like_header(head: bytes) -> bool:
    """A few numbers and then zeros, as in all files of llm.c; read as ids, they would train on rubbish."""
    return len(head) == HEADER_BYTES and any(head[:64]) and not any(head[64:])


def _read_llm_c(path: Path, head: bytes, version: int, dtype: str) -> Array:
    if len(head) < HEADER_BYTES:
        raise TapelessError(f"{path} is cut off: llm.c's header has {HEADER_BYTES} bytes, and it holds {len(head)}.")
    magic, written, count = (int(number) for number in np.frombuffer(head, "<i4", 3))
    if written != version:
        raise TapelessError(f"{path} has version {written}, and files that begin with {magic} have {version}.")
    ids = _mapped(path, dtype, HEADER_BYTES)
    if count != len(ids):
        raise TapelessError(f"{path} holds {len(ids):,} tokens, and its header says {count:,}: copy it again.")
    return ids


def _looks_wider(ids: Array) -> bool:
    """Small numbers of 32 or 64 bits, read as 16: every second is zero, and not every first."""
    return len(ids) >= 16 and not ids[1::2].any() and bool(ids[::2].any())


def _mapped(path: Path, dtype: str, offset: int) -> Array:
    if not path.is_file():
        raise TapelessError(f"{path} is missing: tokenize again, or copy it from where the folder came from.")
    size, width = path.stat().st_size - offset, np.dtype(dtype).itemsize
    if not size:
        raise TapelessError(f"{path} holds no tokens.")
    if size % width:
        raise TapelessError(f"{path} is cut off: {size:,} bytes of ids are no multiple of {width}.")
    return np.asarray(np.memmap(path, dtype, mode="r", offset=offset))


def _survey(ids: Array) -> tuple[int, str]:
    """The largest id, and the SHA-256 of all, a stretch at a time."""
    digest, largest = hashlib.sha256(), 0
    step = AT_ONCE // ids.itemsize
    for start in range(0, len(ids), step):
        stretch = ids[start : start + step]
        digest.update(stretch.data)
        largest = max(largest, int(stretch.max()))
    return largest, digest.hexdigest()


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()
