"""Bars for work that takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIGTERM, signal
from typing import Any, NoReturn, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tapeless.cli.common import console
from tapeless.cli.output import say
from tapeless.kernels.cpu import compilations, progress_listeners

T = TypeVar("T")
TERMINATED = 143  # the exit status that shells know SIGTERM by
Report = Callable[[str, int, int], None]  # what is done, how much of it, and how much there is


@contextmanager
def work_shown(quiet: bool) -> Iterator[Report]:
    """Show a bar on a terminal for whatever is reported, the compiling of kernels included."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    hidden, before = quiet or not console.is_terminal, len(compilations)
    progress = Progress(*columns, console=console, transient=True, disable=hidden)
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            progress.start()
            tasks[what] = progress.add_task(what)
        progress.update(tasks[what], completed=done, total=total or None)

    def compiling(done: int, total: int) -> None:
        if hidden and not quiet and done == 0:
            console.print(f"compiling kernels: {total}")
        report("compiling kernels", done, total)

    progress_listeners.append(compiling)
    handler = signal(SIGTERM, _terminated)
    try:
        yield report
    finally:
        signal(SIGTERM, handler)
        progress_listeners.remove(compiling)
        if tasks and not hidden:  # else rich prints an empty line where there is no terminal
            progress.stop()
    seconds = [each.seconds for each in compilations[before:] if not each.cached]
    if seconds and not quiet:
        kernels = "1 kernel" if len(seconds) == 1 else f"{len(seconds)} kernels"
        console.print(f"[dim]compiled {kernels} in {sum(seconds):.1f} s; next time from disk[/]")


def _terminated(number: int, frame: Any) -> NoReturn:
    """End with a word; what was begun is removed on the way out."""
    say("stopped by SIGTERM.")
    raise SystemExit(TERMINATED)


def one_by_one(things: Sequence[T], described: Callable[[T], str], quiet: bool) -> Iterator[T]:
    """Yield each of the things under a bar that says which it is."""
    return counted(things, len(things), described, quiet)


def counted(things: Iterable[T], total: int, described: Callable[[T], str], quiet: bool) -> Iterator[T]:
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        for thing in things:
            progress.update(task, description=described(thing))
            yield thing
            progress.advance(task)
