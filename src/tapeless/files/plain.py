"""Files that come from anywhere: opened only if they are plain files, read with a bound, believed only when checked.

JSON and TOML hold more than Python takes lightly:
nesting that exhausts the stack, whole numbers that fit no 64 bits, halves of surrogate pairs that cannot be printed.
What passes here can be walked, formatted and written again. Nothing that we write needs such a number; other programs
do write them where nobody reads them (transformers has 10³⁰ for "no limit"), so of theirs only who uses one looks at
its size.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from errno import EFBIG, EINVAL
from io import BufferedReader
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError

DEEPEST = 64  # objects and lists inside one another
LARGEST_TOML = 1 << 20
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def open_plain(path: Path) -> BufferedReader:
    """A file on the disk, to read from. OSError where it cannot be, or is no plain file: a pipe would make us wait for
    its other end, and a device may have no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError:  # a NUL, or half a surrogate pair
        raise TapelessError(f"{str(path)!r} is no name of a file: choose another.") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(EINVAL, f"it is {kind}, not a plain file", str(path))
    return open(descriptor, "rb")  # noqa: PTH123 (it is open already)


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All of a plain file, of at most `most` bytes. OSError where it cannot be read, or is longer."""
    with open_plain(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(EFBIG, f"it is longer than {most:,} bytes, too long for what it should be", str(path))
        return file.read()


def parse_json(data: bytes, foreign: bool = False) -> Any:
    """What JSON in UTF-8 says; ValueError with the reason, as the end of a sentence, where it cannot be used. In what
    another program wrote, which is `foreign`, whole numbers may be of any size."""
    try:
        if foreign:
            return _usable(json.loads(data.decode("utf-8"), parse_int=_whole), any_size=True)
        return _usable(json.loads(data.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start:,} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int | float:
    """One too large even for a float is infinite, as 1e999 is: it can be compared, printed, and used by nobody."""
    return int(digits) if len(digits) <= sys.float_info.max_10_exp else float(digits)


def read_json(path: Path, most: int, foreign: bool = False) -> dict[str, Any]:
    """The object that a JSON file of at most so many bytes holds; anything else is refused with the reason."""
    try:
        content = parse_json(read_plain(path, most), foreign)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise TapelessError(f"{path} is not JSON that can be read: {error}.") from None
    if not isinstance(content, dict):
        raise TapelessError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
    try:
        content: dict[str, Any] = _usable(tomllib.loads(read_plain(path, LARGEST_TOML).decode("utf-8")))
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except RecursionError:
        raise TapelessError(f"{path} is not valid TOML: it is nested too deeply.") from None
    except ValueError as error:  # so are what tomllib and UTF-8 raise, and an integer of thousands of digits
        raise TapelessError(f"{path} is not valid TOML: {error}.") from None
    return content


def _usable(value: Any, any_size: bool = False) -> Any:
    """The value itself, level by level found to be shallow, of integers of 64 bits and of text that is text."""
    level: list[tuple[str, Any]] = [("it", value)]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")
        below: list[tuple[str, Any]] = []
        for name, each in level:
            if isinstance(each, dict):
                below += (("a name", key) for key in each)
                below += each.items()
            elif isinstance(each, list):
                below += ((name, inner) for inner in each)
            elif isinstance(each, str):
                if not each.isascii() and any("\ud800" <= character <= "\udfff" for character in each):
                    raise ValueError(f"{name[:40]!r} holds half a surrogate pair, which is no character")
            elif isinstance(each, int) and not any_size and not -(1 << 63) <= each < 1 << 63:
                raise ValueError(f"{name[:40]!r} holds a whole number that does not fit 64 bits")
        level, depth = below, depth + 1
    return value


def fits(value: Any, shape: Any) -> bool:
    """Whether a value is what a file should say. A shape is a type; a map of names to shapes, or of `...` to the shape
    of all; a list with the shape of each; several of which one fits; or a function that tells."""
    if isinstance(shape, type):
        return type(value) is shape
    if isinstance(shape, tuple):
        return type(value) in shape or any(fits(value, each) for each in shape if not isinstance(each, type))
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    if not isinstance(shape, dict):
        return bool(shape(value))
    if not isinstance(value, dict):
        return False
    if ... in shape:
        inner = shape[...]
        if isinstance(inner, tuple) and {*map(type, value.values())}.issubset(inner):  # as of most lines of metrics
            return True
        return all(fits(each, inner) for each in value.values())
    return all(fits(value.get(name, ...), inner) for name, inner in shape.items())
