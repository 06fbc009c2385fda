"""What the commands share: preset fields as options, sizes for people, the console."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from tapeless.models.config import CHOICES, OVERRIDABLE, Config

# In a pipe or a file there is no terminal whose width would matter.
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="A preset; `tapeless presets` lists them.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
Batch = Annotated[int, typer.Option("--batch", "-B", help="Sequences per step.")]
Time = Annotated[int | None, typer.Option("--time", "-T", help="Positions per sequence.")]
Threads = Annotated[int | None, typer.Option(help="Threads of the cpu backend; all cores by default.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and data.")]

_TYPES: dict[str, Any] = {"int": int, "int | None": int, "float": float, "str": str, "bool": bool}


def with_preset_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every field of a preset; those that were set arrive as `changes`."""
    taken = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in taken.parameters.items() if name != "changes"]
    names = [field.name for field in fields(Config) if field.name in OVERRIDABLE and field.name not in taken.parameters]

    def wrapped(**values: Any) -> None:
        changes = {name: values.pop(name) for name in names if values[name] is not None}
        command(**{name: value for name, value in values.items() if name not in names}, changes=changes)

    types = {field.name: _TYPES[str(field.type)] for field in fields(Config) if field.name in names}
    options = []
    for name in names:
        switch = name.replace("_", "-")
        flags = f"--{switch}/--no-{switch}" if types[name] is bool else f"--{switch}"
        choices = " or ".join(CHOICES[name]) if name in CHOICES else None
        option = typer.Option(flags, help=choices, rich_help_panel="Preset fields", show_default=False)
        annotation: Any = Annotated[Optional[types[name]], option]  # noqa: UP045
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    parameters = [*own, *options]
    wrapped.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


@contextmanager
def compiling_shown(quiet: bool) -> Iterator[None]:
    """A line that says which kernel is being compiled: the first time that takes a while."""
    from tapeless.backends.compile import compiled, listeners

    started, before = time.perf_counter(), len(compiled)
    with console.status("") as status:
        if quiet:
            status.stop()
        listeners.append(lambda kernel: status.update(f"compiling {kernel} ({len(compiled) - before + 1} so far)"))
        try:
            yield
        finally:
            listeners.pop()
    fresh = [entry for entry in compiled[before:] if not entry.cached]
    if fresh and not quiet:
        seconds = time.perf_counter() - started
        console.print(f"[dim]compiled {len(fresh)} kernels in {seconds:.1f} s; next time they are read from disk[/]")


def print_json(document: Any) -> None:
    print(json.dumps(_without_nan(document), ensure_ascii=False, allow_nan=False))


def _without_nan(document: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(document, dict):
        return {key: _without_nan(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_without_nan(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def flops(count: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:.3g} PFLOP"


def shape(sizes: Any) -> str:
    return "×".join(map(str, sizes))


def bars(values: list[float], width: int) -> str:
    """A row of block characters, one per column, as high as the largest value of its stretch."""
    if not values:
        return ""
    width = min(width, len(values))
    top = max(values) or 1
    stretches = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * max(stretch) / top)] for stretch in stretches)
