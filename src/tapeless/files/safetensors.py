"""The safetensors format, streamed to the disk and read from a map of the file; what a file claims is checked first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tapeless.errors import TapelessError
from tapeless.files.disk import Written, write_file
from tapeless.files.plain import open_plain

PIECE = 1 << 20  # bytes that are written at a time
LARGEST_HEADER = 16 << 20  # room for more than 100,000 tensors, and a bound on what a hostile file makes us parse
LARGEST_SIZE = 2**63 - 1
MOST_AXES = 64  # NumPy's own limit
LENGTH_BYTES = 8
METADATA = "__metadata__"
NOTHING: Mapping[str, str] = {}

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
BFLOAT16 = "bfloat16"
STORED_AS = {code: name for name, code in STORED.items() if name != "BF16"}


def write_safetensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, dtype: str | None = None, metadata: Mapping[str, str] = NOTHING
) -> Written:
    """Write arrays in the safetensors format, in pieces, never a copy of the whole; as they are, ml_dtypes' bfloat16
    too, or converted to `dtype`, a NumPy code or "bfloat16". OSError where it fails."""
    return write_file(path, _safetensors(tensors, dtype, metadata))


def check_storable(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Refuse what the format cannot hold."""
    for name, array in tensors.items():
        if name == METADATA:
            raise TapelessError(f"a tensor cannot be named {METADATA}: the format keeps that name for itself.")
        if _code(array) not in (*STORED_AS, BFLOAT16):
            raise TapelessError(
                f"tensor {name!r} is of type {array.dtype}, which safetensors cannot hold: "
                f"store it as float64, float32, float16, bfloat16, an integer or bool."
            )


def _code(array: NDArray[Any]) -> str:
    return BFLOAT16 if array.dtype.name == BFLOAT16 else array.dtype.newbyteorder("<").str


def _safetensors(
    tensors: Mapping[str, NDArray[Any]], dtype: str | None, metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    # Wide types first: every tensor then starts at a multiple of its item size, without gaps.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, array in ordered.items():
        code = dtype or _code(array)
        stored = "BF16" if code == BFLOAT16 else STORED_AS[code]
        start, end = end, end + array.size * np.dtype(STORED[stored]).itemsize
        entries[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH_BYTES)
    yield len(header).to_bytes(LENGTH_BYTES, "little") + header
    for array in ordered.values():
        yield from _pieces(array, dtype or _code(array))


def _pieces(array: NDArray[Any], code: str) -> Iterator[memoryview]:
    """The bytes in C order, little-endian, whatever the array's own layout; only a piece is ever copied."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    at_once = PIECE // array.dtype.itemsize
    for start in range(0, array.size, at_once):
        piece = flat[start : start + at_once]
        yield np.ascontiguousarray(*(_rounded(piece) if code == BFLOAT16 else (piece, code))).view(np.uint8).data


def _rounded(values: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Finite numbers to the nearest bfloat16, of two the even one, as bits: the upper half of a float32's."""
    bits = np.ascontiguousarray(values, "<f4").view(np.uint32)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, STORED["BF16"]


@dataclass(frozen=True)
class _Entry:
    stored: str
    shape: tuple[int, ...]
    start: int  # from the beginning of the data
    end: int


class StoredTensors(Mapping[str, NDArray[Any]]):
    """The tensors of a safetensors file: read-only views of the mapped file, made when asked for.

    bfloat16 comes as float32, one tensor at a time.
    """

    def __init__(self, content: mmap, data: int, entries: Mapping[str, _Entry], metadata: Mapping[str, str]) -> None:
        self._content, self._data, self._entries, self.metadata = content, data, entries, metadata

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self._entries[name]
        dtype = np.dtype(STORED[entry.stored])
        flat: NDArray[Any] = np.frombuffer(self._content, dtype, prod(entry.shape), self._data + entry.start)
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


def read_safetensors(path: Path) -> StoredTensors:
    """The tensors of a file, mapped into memory; a malformed one is refused with one sentence, and never trusted."""
    try:
        content = _mapped(path)
        header = _header(content)
        data = LENGTH_BYTES + len(header)
        entries, metadata = _entries(header, len(content) - data)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (_MalformedError, RecursionError) as error:
        fault = error if isinstance(error, _MalformedError) else "its header is nested too deeply"
        raise TapelessError(f"{path} is not a sound safetensors file: {fault}; fetch or write it again.") from None
    return StoredTensors(content, data, entries, metadata)


def _mapped(path: Path) -> mmap:
    with open_plain(path) as file:
        size = file.seek(0, 2)
        if size < LENGTH_BYTES:
            raise _MalformedError(f"it has {size} bytes, too few to begin with the length of a header")
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def _header(content: mmap) -> bytes:
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if length > len(content) - LENGTH_BYTES:
        raise _MalformedError(f"its header claims {length:,} bytes, and the file has {len(content):,}")
    if length > LARGEST_HEADER:
        raise _MalformedError(f"its header claims {length:,} bytes, more than the {LARGEST_HEADER:,} that are read")
    return content[LENGTH_BYTES : LENGTH_BYTES + length]


def _entries(header: bytes, data_size: int) -> tuple[dict[str, _Entry], dict[str, str]]:
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
    return entries, metadata


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
