"""What the commands share: options, the console, tables, JSON and numbers for people."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tapeless.errors import TapelessError
from tapeless.shown import flops as flops
from tapeless.shown import shape as shape
from tapeless.shown import size as size

PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="A preset; `tapeless presets` lists them.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that `train` or `import` made.")]
PrecisionName = Annotated[
    str | None, typer.Option(help="float32, float64 or bfloat16. Default: the one the backend prefers.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the new run. Default: runs/NAME-001, -002, …")]

LONGEST_PART, LONGEST_PATH = 255, 4095  # bytes, as file systems have it
# In a pipe or a file there is no terminal whose width would matter.
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table without lines. A heading begins with `>` if its column is right-aligned and with `<` if it is
    left-aligned, and then is never folded."""
    made = Table(box=None, header_style="dim", pad_edge=False, show_header=any(each.strip("<>") for each in headings))
    for heading in headings:
        justify: Any = "right" if heading.startswith(">") else "left"
        made.add_column(heading.lstrip("<>"), justify=justify, no_wrap=heading[:1] in tuple("<>"), overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def warn(messages: Iterable[str]) -> None:
    for message in messages:
        console.print(f"[yellow]{escape(message)}[/]")


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


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def bars(values: list[float]) -> str:
    """A row of block characters across the terminal, each as high as the largest value of its stretch."""
    width = min(console.width - 2, 100, len(values))
    top = max(values, default=1) or 1
    stretches = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * max(stretch) / top)] for stretch in stretches)


def harmless(text: str) -> str:
    """The text with a picture in the place of each character that would steer a terminal."""
    return "".join(each if each in "\n\t" or each.isprintable() else _picture(each) for each in text)


def _picture(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else "␡" if code == 127 else "\N{REPLACEMENT CHARACTER}"


def own_command() -> str:
    """How this program was started: after `make train` it is in .venv/bin and not on the PATH."""
    program = sys.argv[0]
    started_as = "python -m tapeless" if program.endswith("__main__.py") else shlex.quote(os.path.relpath(program))
    return "tapeless" if shutil.which("tapeless") else started_as


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


def check_svg(path: Path | None) -> None:
    """Refuse a picture's path before anything is computed for it."""
    if path is not None and path.suffix.lower() != ".svg":
        raise TapelessError(f"{path} is no name for the picture, which is SVG: let it end in .svg.")
