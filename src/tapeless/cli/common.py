"""What the commands share: options, sizes for people, the console."""

from __future__ import annotations

import inspect
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from tapeless.shown import flops as flops
from tapeless.shown import shape as shape
from tapeless.shown import size as size

# In a pipe or a file there is no terminal whose width would matter.
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="A preset; `tapeless presets` lists them.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
Time = Annotated[int | None, typer.Option("--time", "-T", help="Positions per sequence.")]
Threads = Annotated[int | None, typer.Option(help="Threads of the cpu backend; all cores by default.")]


def with_flowing_help(command: Callable[..., None]) -> Callable[..., None]:
    """Let each paragraph of a command's help be as wide as the terminal is, and not as the source."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in paragraphs)
    return command


def take_threads(backend: str, threads: int | None) -> None:
    """Run calls on so many threads from now on, if the backend has any."""
    from tapeless.backends.backend import backend_named, thread_count

    if threads is not None:
        thread_count(backend_named(backend), threads)


@contextmanager
def compiling_shown(quiet: bool) -> Iterator[None]:
    """A bar while kernels are compiled: the first time that takes a few seconds."""
    from tapeless.cli.progress import counted
    from tapeless.kernels.cpu import compilations, progress_listeners

    started, before = time.perf_counter(), len(compilations)
    with counted("compiling kernels", quiet) as counter:
        progress_listeners.append(counter)
        try:
            yield
        finally:
            progress_listeners.remove(counter)
    fresh = [entry for entry in compilations[before:] if not entry.cached]
    if fresh and not quiet:
        seconds = time.perf_counter() - started
        kernels = "1 kernel" if len(fresh) == 1 else f"{len(fresh)} kernels"
        console.print(f"[dim]compiled {kernels} in {seconds:.1f} s; next time from disk[/]")


def print_json(document: Any) -> None:
    # What is no character, as in a file's name that is not UTF-8, must stay JSON.
    text = json.dumps(_without_nan(document), ensure_ascii=False, allow_nan=False)
    print(text if _prints(text) else json.dumps(_without_nan(document), allow_nan=False))


def _prints(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _without_nan(document: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(document, dict):
        return {key: _without_nan(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_without_nan(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def count(number: float) -> str:
    """A number for people: 102 k, 16.3 M."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} P"


def bars(values: list[float], width: int) -> str:
    """A row of block characters, one per column, as high as the largest value of its stretch."""
    if not values:
        return ""
    width = min(width, len(values))
    top = max(values) or 1
    stretches = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * max(stretch) / top)] for stretch in stretches)


def harmless(text: str) -> str:
    """As it can be shown: what would steer a terminal is a picture of it, character for character."""
    return "".join(each if each in "\n\t" or each.isprintable() else _picture(each) for each in text)


def _picture(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else "␡" if code == 127 else "\N{REPLACEMENT CHARACTER}"


def own_command() -> str:
    """How this program was started: after `make train` it is in .venv/bin and not on the PATH."""
    program = sys.argv[0]
    started_as = "python -m tapeless" if program.endswith("__main__.py") else shlex.quote(os.path.relpath(program))
    return "tapeless" if shutil.which("tapeless") else started_as
