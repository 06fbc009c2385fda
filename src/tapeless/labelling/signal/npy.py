"""Arrays of numbers in .npy files, mapped and not read.

NumPy's own reader is made for its own files: of a damaged header it raises whatever Python's parser, its types or the
operating system do, and of some it asks for memory that nobody has. The header is one line, so it is read here.
"""

from __future__ import annotations

import ast
import re
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.plain import open_plain
from tapeless.ops.contract import Array

MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}  # of the header's length, by the format's version
LONGEST_HEADER = 4096  # of an array of plain numbers it has some 120 bytes
NUMBERS = re.compile(r"[<>|=]?[biufc]\d{1,2}", re.ASCII)
KEYS = {"descr", "fortran_order", "shape"}


class _MalformedArrayError(Exception):
    """What is wrong with a file, as the end of a sentence."""


def open_array(path: Path) -> Array:
    """The array of a .npy file; one with Python objects in it is refused, as it could run code."""
    try:
        with open_plain(path) as file:
            return _mapped(path, file)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror or error}.") from None
    except _MalformedArrayError as fault:
        raise TapelessError(f"{path} is no whole .npy file, {fault}: write it with numpy.save.") from None


def _mapped(path: Path, file: BinaryIO) -> Array:
    header = _header(file)
    dtype, shape = _dtype(path, header["descr"]), header["shape"]
    order = header["fortran_order"]
    if not isinstance(order, bool):
        raise _MalformedArrayError(f"its fortran_order is {str(order)[:20]!r}")
    sizes = isinstance(shape, tuple) and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
    if not sizes or len(shape) > 32:
        raise _MalformedArrayError(f"its shape is {str(shape)[:40]!r}")
    start, size = file.tell(), prod(shape) * dtype.itemsize
    there = file.seek(0, 2) - start
    if there < size:
        raise _MalformedArrayError(f"its header promises {size:,} bytes of numbers, and there are {there:,}")
    if not size:
        return np.empty([0 if 0 in shape else each for each in shape][:1] or (), dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if order else "C")


def _header(file: BinaryIO) -> dict[str, Any]:
    begin = file.read(len(MAGIC) + 2)
    if not begin.startswith(MAGIC) or len(begin) < len(MAGIC) + 2:
        raise _MalformedArrayError("as it does not begin like one")
    version = begin[-2]
    if version not in LENGTH_BYTES:
        raise _MalformedArrayError(f"as its version is {version}")
    length = int.from_bytes(file.read(LENGTH_BYTES[version]), "little")
    if length > LONGEST_HEADER:
        raise _MalformedArrayError(f"as its header claims {length:,} bytes")
    text = file.read(length)
    if len(text) < length:
        raise _MalformedArrayError("as it ends within its header")
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all that literal_eval names
        header = None
    if not isinstance(header, dict) or set(header) != KEYS:
        raise _MalformedArrayError("as its header is not one")
    return header


def _dtype(path: Path, described: Any) -> np.dtype[Any]:
    text = described if isinstance(described, str) else ""
    if "O" in str(described):
        raise TapelessError(f"{path} holds Python objects: save an array of plain numbers instead.")
    if not NUMBERS.fullmatch(text):
        raise TapelessError(f"{path} holds {str(described)[:40]!r}, not numbers: save an array of plain numbers.")
    try:
        return np.dtype(text)
    except TypeError:
        raise _MalformedArrayError(f"as there is no type {text!r}") from None
