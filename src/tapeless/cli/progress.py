"""Bars for what takes a while and goes through many things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def counted(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A function that is told (done, total). It shows a bar until all is done; where there is no terminal, one line."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("", total=None)

    def count(done: int, total: int) -> None:
        if quiet or not console.is_terminal:
            if done == 0 and not quiet:
                console.print(f"{title}: {total}")
            return
        progress.update(task, completed=done, total=total)
        if done < total:
            progress.start()
        else:
            progress.stop()

    try:
        yield count
    finally:
        if progress.live.is_started:  # else rich prints an empty line where there is no terminal
            progress.stop()
