"""`tapeless compare`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from tapeless.cli.common import Json, check_svg, console, count, print_json, table, warn
from tapeless.cli.runs import FIGURES, figures, state
from tapeless.files.disk import write_whole
from tapeless.labelling.run import EVERY_KIND
from tapeless.pictures.curves import LETTERS, MARGIN, curves_svg, drawn
from tapeless.train.comparison import Comparison
from tapeless.train.comparison import compare as compare_runs

LETTER_STYLES = ("cyan", "yellow", "green", "magenta", "blue", "red")
WIDEST = 120  # columns: a curve that is wider is harder to take in


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN …", help="Folders of two runs or more.")],
    svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the curves into this file, too.")] = None,
    json: Json = False,
) -> None:
    """Compare runs: the settings in which they differ, their curves of validation loss, and what they came to.

    Runs of different lengths and kinds can be compared, and runs that still train.

    Example: tapeless compare runs/ops-102k-001 runs/ops-102k-002 --svg curves.svg
    """
    check_svg(svg)
    found = compare_runs(runs, EVERY_KIND)
    if svg is not None:
        write_whole(svg, curves_svg(found.curves, "validation loss (faint: training loss)", "steps").encode())
    if json:
        print_json(_as_json(found))
        return
    _print_settings(found)
    _print_curves(found)
    _print_figures(found)
    warn(found.remarks)
    if svg is not None:
        console.print(f"The curves are drawn in [bold]{escape(str(svg))}[/].", soft_wrap=True)


def _as_json(found: Comparison) -> dict[str, Any]:
    runs = []
    for each, curve in zip(found.runs, found.curves, strict=True):
        plain = {name: value for name, value in asdict(each).items() if name != "lines"}
        runs.append(plain | {"folder": str(each.folder), "curve": [list(point) for point in curve.points]})
    return {"runs": runs, "differing": found.differing, "remarks": found.remarks}


def _letter(number: int) -> str:
    return f"[{LETTER_STYLES[number % len(LETTER_STYLES)]}]{LETTERS[number]}[/]"


def _print_settings(found: Comparison) -> None:
    if not found.differing:
        console.print("[dim]Their settings are the same.[/]")
        return
    headings = ("differing", *map(_letter, range(len(found.runs))))
    rows = [(name, *(escape(_value(value)) for value in values)) for name, values in found.differing.items()]
    console.print(table(headings, rows))


def _value(value: Any) -> str:
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple | list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_curves(found: Comparison) -> None:
    rows = drawn(found.curves, min(console.width, WIDEST))
    if not rows:
        return
    console.print("\n[dim]validation loss over steps[/]")
    for row in rows:
        line = Text(row, no_wrap=True)
        for at, character in enumerate(row):
            if at >= MARGIN and character in LETTERS:
                line.stylize(LETTER_STYLES[LETTERS.index(character) % len(LETTER_STYLES)], at, at + 1)
        console.print(line)


def _print_figures(found: Comparison) -> None:
    lowest = min((each.best for each in found.runs if each.best is not None), default=None)
    rows = []
    for number, each in enumerate(found.runs):
        weights, steps, loss, best, accuracy = figures(each)
        best = f"[bold green]{best}[/]" if best and each.best == lowest and not found.remarks else best
        at = "" if each.best_step is None else f"{each.best_step:,}"
        speed = "" if each.tokens_per_second is None else count(each.tokens_per_second)
        run = escape(str(each.folder))
        rows.append((_letter(number), run, weights, steps, loss, best, accuracy, at, speed, state(each.state)))
    console.print()
    console.print(table(("<", "run", *FIGURES, ">best at", ">tok/s", "<"), rows))
