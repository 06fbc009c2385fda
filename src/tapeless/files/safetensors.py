"""The safetensors format, streamed to the disk, and read from a map of the file once its own package finds it sound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapeless.errors import TapelessError
from tapeless.files.disk import Written, write_file
from tapeless.files.plain import open_plain

PIECE = 1 << 20  # bytes that are written at a time
LARGEST_HEADER = 16 << 20  # room for more than 100,000 tensors, and a bound on what a hostile file makes us parse
LONGEST_FAULT = 160  # characters, of what the package says
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


class StoredTensors(Mapping[str, NDArray[Any]]):
    """The tensors of a safetensors file: read-only views of the mapped file. bfloat16 comes as float32, one tensor at a
    time."""

    def __init__(self, views: Mapping[str, tuple[str, NDArray[Any]]], metadata: Mapping[str, str]) -> None:
        """`views`: of each tensor how it is stored, and the mapped numbers."""
        self._views, self.metadata = views, metadata

    def __getitem__(self, name: str) -> NDArray[Any]:
        stored, array = self._views[name]
        if stored != "BF16":
            return array
        wide = array.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def read_safetensors(path: Path) -> StoredTensors:
    """The tensors of a file, mapped into memory, once the format's own package finds it sound."""
    from safetensors import SafetensorError, safe_open

    try:
        with open_plain(path) as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > LARGEST_HEADER:
                raise SafetensorError(f"its header claims {length:,} bytes, more than the {LARGEST_HEADER:,} read")
            with safe_open(path, framework="np"):
                content = mmap(file.fileno(), 0, access=ACCESS_READ)
        described = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        metadata = described.pop(METADATA, None) or {}
        return StoredTensors({name: _view(content, length, described[name]) for name in described}, metadata)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except (SafetensorError, ValueError) as error:
        said = (
            str(error).removeprefix("Error while deserializing header: ").replace(" at line 1 column ", ", character ")
        )
        fault = repr(said)[1:-1][:LONGEST_FAULT].rstrip(".")
        raise TapelessError(f"{path} is not a sound safetensors file: {fault}; fetch or write it again.") from None


def _view(content: mmap, length: int, described: Mapping[str, Any]) -> tuple[str, NDArray[Any]]:
    stored, shape, start = described["dtype"], described["shape"], described["data_offsets"][0]
    if stored not in STORED:
        raise ValueError(f"the dtype {stored} is not one of {', '.join(STORED)}")
    flat: NDArray[Any] = np.frombuffer(content, STORED[stored], prod(shape), LENGTH_BYTES + length + start)
    return stored, flat.reshape(shape)
