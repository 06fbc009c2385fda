"""How everything of a run reaches the disk: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tapeless.errors import TapelessError
from tapeless.files.plain import parse_json

P = ParamSpec("P")
T = TypeVar("T")


PAUSES = (1.0, 4.0, 15.0)  # seconds after which what did not reach the disk is tried again


class UnwritableError(TapelessError):
    """Something did not reach the disk: with room made, or the cause removed, it can be tried again."""


def perform(operation: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Every operation that changes the disk passes here, so that a test can make any one of them fail, or the last."""
    return operation(*arguments, **named)


def retried(write: Callable[[], T]) -> T:
    """What `write` gives; as long as it does not reach the disk it is tried again, and at last UnwritableError."""
    for pause in PAUSES:
        try:
            return write()
        except UnwritableError:
            time.sleep(pause)
    return write()


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
    """Make what was created in, renamed into or removed from a folder survive a power cut; of a file, its content."""
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
    beside = _beside(path)
    try:
        write_file(beside, [content])
        rename(beside, path)
    except OSError:
        with suppress(OSError):
            perform(os.unlink, beside)
        raise


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def remove_beside(path: Path) -> None:
    """What a process left that was killed while it replaced this file."""
    if _beside(path).exists():
        with suppress(OSError):
            perform(os.unlink, _beside(path))


def write_whole(path: Path, content: bytes) -> None:
    """The file holds all of `content` and lasts, or is as it was."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}; the file is as it was.") from None


@contextmanager
def made_whole(target: Path, *, folder: bool = True) -> Iterator[Path]:
    """A place to write to, a folder or the name for a file, that becomes `target` when all is written: it is whole or
    not there."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    remove_folder(beside)  # what a killed process of the same number may have left
    try:
        make_folder(beside if folder else target.absolute().parent)
        yield beside
        fsync_folder(beside)
        rename(beside, target)
    except OSError as error:
        raise TapelessError(f"cannot write {target}: {error.strerror}.") from None
    finally:
        if os.path.lexists(beside):
            remove_folder(beside)


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
