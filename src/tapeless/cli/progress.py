"""A bar for what goes through many things one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tapeless.cli.common import console

T = TypeVar("T")


def one_by_one(things: Sequence[T], told: Callable[[T], str], quiet: bool) -> Iterator[T]:
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("", total=len(things))
        for thing in things:
            progress.update(task, description=told(thing))
            yield thing
            progress.advance(task)
