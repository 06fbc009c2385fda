"""`tapeless runs`"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.cli.common import Json, console, count, print_json, table
from tapeless.errors import TapelessError
from tapeless.labelling.run import EVERY_KIND
from tapeless.train.survey import DAMAGED, Overview, survey

STYLES = {"finished": "green", "running": "cyan", "damaged": "bold red"}
FIGURES = (">weights", ">steps", ">loss", ">best", ">accuracy")
WIDE = 110  # columns from which a run is one line


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the runs.", show_default=True)] = Path(
        "runs"
    ),
    by: Annotated[str, typer.Option(help="newest, or loss: the smallest validation loss first.")] = "newest",
    json: Json = False,
) -> None:
    """List the runs, with the figures that matter.

    A run is finished, stopped (--resume goes on), running now, or damaged. Loss and accuracy are those of the
    validation data, the last and the best.

    Example: tapeless runs --by loss
    """
    found = survey(folder, by, EVERY_KIND)
    if json:
        listed = [{name: value for name, value in asdict(each).items() if name != "lines"} for each in found]
        print_json([each | {"folder": str(each["folder"])} for each in listed])
        return
    if not found:
        raise TapelessError(f"{folder} holds no runs: `tapeless train` makes them.")
    console.print(_table(folder, found))
    for each in found:
        if each.state == DAMAGED:
            console.print(f"[red]{escape(str(each.folder))}[/]: {escape(each.reason)}")


def _table(folder: Path, found: list[Overview]) -> Table:
    rows, wide, now = [], console.width >= WIDE, time.time()
    for each in found:
        name = escape(str(each.folder.relative_to(folder)) if each.folder != folder else str(folder))
        kind, model = escape(each.kind), escape(each.preset)
        below = f"\n[dim]{kind}, {model}[/]" if each.preset and not wide else ""
        about = (kind, model) if wide else ()
        rows.append((f"[bold]{name}[/]{below}", *about, *figures(each), age(now - each.changed), state(each.state)))
    return table(("run", *(("kind", "model") if wide else ()), *FIGURES, ">age", "<"), rows)


def figures(run: Overview) -> tuple[str, ...]:
    """What stands under FIGURES."""
    accuracy = "" if run.accuracy is None else f"{run.accuracy:.1%}"
    weights = "" if run.parameters is None else count(run.parameters)
    return weights, f"{run.step:,}", _loss(run.loss), _loss(run.best), accuracy


def state(name: str) -> str:
    return f"[{STYLES.get(name, 'yellow')}]{name}[/]"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value < 1000 else f"{value:.1e}"


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
