"""`tapeless runs`"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.cli.common import Json, console, count, print_json
from tapeless.errors import TapelessError
from tapeless.labelling.run import EVERY_KIND
from tapeless.train.survey import DAMAGED, Overview, survey

STYLES = {"finished": "green", "running": "cyan", "damaged": "bold red"}
WIDE = 110  # columns from which a run is one line


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the runs are.", show_default=True)] = Path(
        "runs"
    ),
    by: Annotated[str, typer.Option(help="newest first, or by loss: the best held-out loss first.")] = "newest",
    json: Json = False,
) -> None:
    """The runs that are there, with the figures that matter.

    Finished, stopped (--resume goes on), running now, or damaged; the loss is that of what was held out, the last and
    the best, and so is what is right.

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
    wide = console.width >= WIDE
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("run", overflow="fold")
    for column in ("kind", "model") if wide else ():
        table.add_column(column, overflow="fold")
    for column in ("weights", "steps", "loss", "best", "right", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    now = time.time()
    for each in found:
        name = str(each.folder.relative_to(folder)) if each.folder != folder else str(folder)
        about = [escape(each.kind), escape(each.preset)]
        run = f"[bold]{escape(name)}[/]"
        if not wide and each.preset:
            run += f"\n[dim]{about[0]}, {about[1]}[/]"
        table.add_row(
            run,
            *(about if wide else ()),
            "" if each.parameters is None else count(each.parameters),
            f"{each.step:,}",
            _loss(each.loss),
            _loss(each.best),
            "" if each.accuracy is None else f"{each.accuracy:.1%}",
            age(now - each.changed),
            f"[{STYLES.get(each.state, 'yellow')}]{each.state}[/]",
        )
    return table


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value < 1000 else f"{value:.1e}"


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
