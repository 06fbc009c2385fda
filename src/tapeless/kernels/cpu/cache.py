"""Compiled kernels on disk: Numba's own cache, made to notice everything that a kernel inlines, and to do without a
disk that cannot be used.

Numba looks at the file in which a kernel stands. But kernels inline what `vector.py`, `division.py` and other ops have,
so machine code from before a change there would run on: the key holds the content of all of them.
"""

from __future__ import annotations

import ast
import hashlib
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tapeless.kernels.cpu.numba_internals import FunctionCache, cpu_target

DOOR = "tapeless.kernels.cpu"
KERNELS = ("tapeless.kernels.", "tapeless.ops.")  # where something may stand that is compiled


def keep_on_disk(form: Any, function: Callable[..., Any]) -> None:
    """From here on the form is read from disk where it is there, and saved where it is not."""
    try:
        form._cache = KernelCache(function)
    except RuntimeError:  # no folder can be written
        _warn(f"neither {Path(function.__code__.co_filename).parent / '__pycache__'} nor any other folder for it")


def cache_folder() -> Path:
    """The folder that holds this package's compiled kernels; RuntimeError if no folder can be written."""
    return Path(KernelCache(cache_folder).cache_path)


class KernelCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, digest(function.__module__))

        # Two processes that compile at once number their files alike: each has names of its own.
        self._cache_file._data_name = partial(_name_of_own, self._cache_file._index_name)

    def has(self, types: tuple[Any, ...]) -> bool:
        """Whether machine code for these types is there, as far as the index says."""
        try:
            key = self._index_key(types, cpu_target.target_context.codegen())
            return key in self._cache_file._load_index()
        except Exception:  # as in `load_overload`
            return False

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # what a crash or a full disk has left half there can raise anything: compiled anew instead
            self._forget()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        try:
            with _alone_in(Path(self.cache_path)):
                super().save_overload(signature, result)
        except OSError as error:
            self._forget()
            _warn(f"{self.cache_path} ({error.strerror})")

    def _forget(self) -> None:
        """An index must not name a file that holds something else, or nothing."""
        try:
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        except OSError:  # then it could not be written either
            return


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time reads a kernel's index and writes it back with one entry more. Where the system knows no
    locks, an entry may be lost: that kernel is compiled again."""
    try:
        from fcntl import LOCK_EX, flock

        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name_of_own(index: str, number: int) -> str:
    return f"{index.removesuffix('.nbi')}.{number}-{os.getpid()}-{_TOKEN}.nbc"


_TOKEN = secrets.token_hex(3)
_warned: list[str] = []


def _warn(place: str) -> None:
    if _warned:
        return
    _warned.append(place)
    warnings.warn(
        f"compiled kernels cannot be kept: {place} cannot be written. Everything works, but is compiled again in every "
        f"process; NUMBA_CACHE_DIR names another folder.",
        RuntimeWarning,
        stacklevel=3,
    )


@cache
def digest(module: str) -> str:
    """Of all the source that may become part of a module's kernels."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imported(name)
    return hashlib.sha256(b"\0".join(_source(name) for name in sorted(found))).hexdigest()


@cache
def _imported(module: str) -> tuple[str, ...]:
    """The modules of ours that it takes something from, as its `from … import …` lines say. What comes through the
    package's door comes from the module behind it."""
    named: list[str] = []
    for source, name in _taken(_source(module)):
        named += [_homes().get(name, ""), f"{source}.{name}"] if source == DOOR else [source, f"{source}.{name}"]
    return tuple(name for name in named if name.startswith(KERNELS) and name in sys.modules)


@cache
def _homes() -> dict[str, str]:
    """The module in which each name of the door is defined."""
    behind = [Path(__file__).with_name(file).read_bytes() for file in ("__init__.py", "language.py")]
    return {name: module for source in behind for module, name in _taken(source)}


def _taken(source: bytes) -> list[tuple[str, str]]:
    """The module and the name of each thing that a source imports."""
    lines = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    return [(line.module or "", each.name) for line in lines for each in line.names]


@cache
def _source(module: str) -> bytes:
    file = sys.modules[module].__file__
    return b"" if file is None else Path(file).read_bytes()
