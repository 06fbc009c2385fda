"""How everything of a run reaches the disk, whole or not at all; and the safetensors format, streamed and checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EINVAL
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from stat import S_ISREG
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.plain import parse_json
from tapeless.ops.contract import Array, Shape

P = ParamSpec("P")
T = TypeVar("T")

PIECE = 1 << 20  # bytes that are hashed and written at a time
LARGEST_HEADER = 16 << 20  # room for more than 100,000 tensors, and a bound on what a hostile file makes us parse
LARGEST_SIZE = 2**63 - 1
MOST_AXES = 64  # NumPy's own limit
LENGTH_BYTES = 8
METADATA = "__metadata__"

# bfloat16 is no NumPy type: its bits are the upper half of a float32's.
STORED = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
STORED_AS = {code: name for name, code in STORED.items() if name != "BF16"}


class UnwritableError(TapelessError):
    """Something did not reach the disk: with room made, or the cause removed, it can be tried again."""


def perform(operation: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Every operation that changes the disk passes here, so that a test can make any one of them fail, or the last."""
    return operation(*arguments, **named)


@dataclass(frozen=True)
class Written:
    size: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Stream pieces into a file, hashed on the way; when this returns, they are on the disk. OSError where not."""
    digest = hashlib.sha256()
    size = 0
    descriptor = perform(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            write_all(descriptor, memoryview(piece))
        perform(os.fsync, descriptor)
    finally:
        perform(os.close, descriptor)
    return Written(size, digest.hexdigest())


def write_all(descriptor: int, rest: memoryview) -> None:
    while rest:  # the system may take less than it is offered: on a disk that is filling up, for one
        rest = rest[perform(os.write, descriptor, rest) :]


def fsync_folder(folder: Path) -> None:
    """Make what was created in, renamed into or removed from a folder survive a power cut."""
    descriptor = perform(os.open, folder, os.O_RDONLY)
    try:
        perform(os.fsync, descriptor)
    except OSError as error:
        if error.errno != EINVAL:  # some network file systems cannot do this for folders, and say so like that
            raise
    finally:
        perform(os.close, descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename, and see to it that the new name lasts."""
    perform(os.rename, source, target)
    fsync_folder(target.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Written beside, then renamed: a reader sees the old file or the new one. OSError where it cannot be done."""
    beside = path.with_name(path.name + ".part")
    try:
        write_file(beside, [content])
        rename(beside, path)
    except OSError:
        with suppress(OSError):
            perform(os.unlink, beside)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """The file holds all of `content` and lasts, or is as it was."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}; the file is as it was.") from None


def make_folder(folder: Path) -> None:
    """The folder and those above it, each lasting. OSError where it cannot be made."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    perform(os.mkdir, folder)
    fsync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all it holds, as far as that goes: what cannot be removed is left. Of a link, there or
    inside, the link alone goes: what it leads to is not ours."""
    with suppress(OSError):  # a name that is no name of a file leads to nothing
        if not folder.is_symlink():
            for here, folders, files in os.walk(folder, topdown=False):
                for path in (Path(here, name) for name in (*files, *folders)):
                    _remove(path)
    _remove(folder)


def _remove(path: Path) -> None:
    with suppress(OSError):
        perform(os.rmdir if path.is_dir() and not path.is_symlink() else os.unlink, path)


def open_regular(path: Path) -> int:
    """A descriptor to read from. OSError where it is no regular file: a pipe would make us wait for its other end, and
    a device may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(EINVAL, "it is no regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int = -1) -> bytes:
    """What a file holds, or its first `most` bytes. Every file of a run is read like this. OSError where it cannot."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def sealed(content: Mapping[str, Any]) -> bytes:
    """JSON with a SHA-256 of its own content."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=2).encode() + b"\n"


def unsealed(data: bytes) -> dict[str, Any]:
    """What was sealed; ValueError where so much as a bit of it is another."""
    content = parse_json(data)
    if isinstance(content, dict):
        content.pop("sha256", None)
        if sealed(content) == data:
            return content
    raise ValueError("not as it was sealed")


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> Written:
    """Write arrays in the safetensors format, in pieces, never a copy of the whole. OSError where it fails."""
    return write_file(path, _safetensors(tensors))


def check_storable(tensors: Mapping[str, Array]) -> None:
    """Refuse what the format cannot hold."""
    for name, array in tensors.items():
        if name == METADATA:
            raise TapelessError(f"a tensor cannot be named {METADATA}: the format keeps that name for itself.")
        if _code(array) not in STORED_AS:
            raise TapelessError(
                f"tensor {name!r} is of type {array.dtype}, which safetensors cannot hold: "
                f"store it as float64, float32, float16, an integer or bool."
            )


def _code(array: Array) -> str:
    return array.dtype.newbyteorder("<").str


def _safetensors(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    # Wide types first: every tensor then starts at a multiple of its item size, without gaps.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    entries = {}
    end = 0
    for name, array in ordered.items():
        start, end = end, end + array.nbytes
        stored = STORED_AS[_code(array)]
        entries[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH_BYTES)
    yield len(header).to_bytes(LENGTH_BYTES, "little") + header
    for array in ordered.values():
        yield from _pieces(array)


def _pieces(array: Array) -> Iterator[memoryview]:
    """The bytes in C order, little-endian, whatever the array's own layout; only a piece is ever copied."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    little = array.dtype.newbyteorder("<")
    at_once = PIECE // array.dtype.itemsize
    for start in range(0, array.size, at_once):
        yield np.ascontiguousarray(flat[start : start + at_once], little).view(np.uint8).data


@dataclass(frozen=True)
class _Entry:
    stored: str
    shape: Shape
    start: int  # from the beginning of the data
    end: int


class Tensors(Mapping[str, Array]):
    """The tensors of a safetensors file: read-only views of the mapped file, made when asked for.

    bfloat16 comes as float32, one tensor at a time.
    """

    def __init__(self, content: mmap, data: int, entries: Mapping[str, _Entry]) -> None:
        self._content, self._data, self._entries = content, data, entries

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        dtype = np.dtype(STORED[entry.stored])
        flat: Array = np.frombuffer(self._content, dtype, prod(entry.shape), self._data + entry.start)
        if entry.stored == "BF16":
            wide = flat.astype(np.uint32)
            wide <<= 16
            flat = wide.view(np.float32)
        return flat.reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _MalformedError(Exception):
    """What is wrong with a file, as the end of a sentence."""


def read_safetensors(path: Path) -> Tensors:
    """The tensors of a file, mapped into memory; a malformed one is refused with one sentence, and never trusted."""
    try:
        content = _mapped(path)
        header = _header(content)
        data = LENGTH_BYTES + len(header)
        entries = _entries(header, len(content) - data)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (_MalformedError, RecursionError) as error:
        fault = error if isinstance(error, _MalformedError) else "its header is nested too deeply"
        raise TapelessError(f"{path} is not a sound safetensors file: {fault}; fetch or write it again.") from None
    return Tensors(content, data, entries)


def _mapped(path: Path) -> mmap:
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size < LENGTH_BYTES:
            raise _MalformedError(f"it has {size} bytes, too few to begin with the length of a header")
        return mmap(descriptor, 0, access=ACCESS_READ)
    finally:
        os.close(descriptor)


def _header(content: mmap) -> bytes:
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if length > len(content) - LENGTH_BYTES:
        raise _MalformedError(f"its header claims {length:,} bytes, and the file has {len(content):,}")
    if length > LARGEST_HEADER:
        raise _MalformedError(f"its header claims {length:,} bytes, more than the {LARGEST_HEADER:,} that are read")
    return content[LENGTH_BYTES : LENGTH_BYTES + length]


def _entries(header: bytes, data_size: int) -> dict[str, _Entry]:
    described = _parsed(header)
    metadata = described.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _MalformedError("its __metadata__ is not a map from text to text")
    entries = {name: _entry(_shown(name), described[name]) for name in described}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.end > data_size:
            raise _MalformedError(f"tensor {_shown(name)} ends at byte {entry.end:,} of {data_size:,} bytes of data")
        if entry.start != position:
            wrong = "overlaps the one before it" if entry.start < position else "leaves a gap before it"
            raise _MalformedError(f"tensor {_shown(name)} {wrong}: it starts at byte {entry.start:,}, not {position:,}")
        position = entry.end
    if position != data_size:
        raise _MalformedError(f"{data_size - position:,} bytes after the last tensor belong to none")
    return entries


def _parsed(header: bytes) -> dict[str, Any]:
    if header[:1] != b"{":
        raise _MalformedError("its header does not begin with {")
    try:
        # The first character being {, what comes out is a map.
        described: dict[str, Any] = json.loads(
            header.decode(), object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant
        )
    except ValueError:
        raise _MalformedError("its header is not JSON in UTF-8") from None
    return described


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _MalformedError(f"its header gives {_shown(repeated)} twice")
    return made


def _integer(digits: str) -> int:
    if len(digits) > len(str(LARGEST_SIZE)):
        raise _MalformedError(f"its header holds a number of {len(digits):,} digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise _MalformedError(f"its header holds {name}")


def _entry(name: str, described: Any) -> _Entry:
    if not isinstance(described, dict) or set(described) != {"dtype", "shape", "data_offsets"}:
        raise _MalformedError(f"tensor {name} is not described by dtype, shape and data_offsets alone")
    stored, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(stored, str) or stored not in STORED:
        raise _MalformedError(f"tensor {name} has the dtype {_shown(stored)}, not one of {', '.join(STORED)}")
    if not _is_sizes(shape):
        raise _MalformedError(f"tensor {name} has the shape {_shown(shape)}, not a list of sizes")
    if len(shape) > MOST_AXES:
        raise _MalformedError(f"tensor {name} has {len(shape):,} axes, more than {MOST_AXES}")
    item = np.dtype(STORED[stored]).itemsize
    if prod(max(size, 1) for size in shape) * item > LARGEST_SIZE:
        raise _MalformedError(f"tensor {name} has the shape {_shown(shape)}, too large for any memory")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _MalformedError(f"tensor {name} has the data_offsets {_shown(offsets)}, not a beginning and an end")
    start, end = offsets
    if end - start != prod(shape) * item:
        raise _MalformedError(
            f"tensor {name} of shape {_shown(shape)} and dtype {stored} takes {prod(shape) * item:,} bytes, "
            f"and its data_offsets span {end - start:,}"
        )
    return _Entry(stored, tuple(shape), start, end)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _shown(value: Any) -> str:
    """Short and printable, whatever a file holds."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
