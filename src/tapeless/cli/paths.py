"""Paths as they come from a command line: `~` taken for the home folder, and refused where they can name nothing."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from tapeless.errors import TapelessError

LONGEST_PART, LONGEST_PATH = 255, 4095  # bytes, as file systems have it


def with_paths(command: Callable[..., None]) -> Callable[..., None]:
    """Let every path that a command takes be read by `named_path`."""
    taken = inspect.signature(command, eval_str=True)
    for parameter in taken.parameters.values():
        kind, *described = get_args(parameter.annotation) or (None,)
        if described and Path in (kind, *get_args(kind)):
            described[0].parser = named_path
    command.__signature__ = taken  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken.parameters.values()}
    return command


def named_path(given: str) -> Path:
    """What a user wrote as a path. A shell expands `~` in `--out ~/run`, but leaves it in `--out=~/run`."""
    if not given:
        raise TapelessError("a path is empty: name a file or a folder, or leave the option out.")
    from tapeless.tasks.data.files import user_path

    path = user_path(given)
    check_length(path)
    return path


def check_length(path: Path) -> None:
    sizes = [len(os.fsencode(part)) for part in path.parts]
    if max(sizes, default=0) > LONGEST_PART or len(os.fsencode(path)) > LONGEST_PATH:
        raise TapelessError(
            f"a path that begins with {str(path)[:40]!r} is too long: a name has at most {LONGEST_PART} bytes, and a "
            f"path {LONGEST_PATH:,}."
        )


def quoted(path: Path) -> str:
    """As it can be pasted into a shell: in quotes where it needs them, and never taken for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
