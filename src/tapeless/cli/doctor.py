"""`tapeless doctor`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from tapeless.cli.common import Json, console, print_json
from tapeless.train.doctor import Observation, diagnose, read_setup
from tapeless.train.doctor.findings import MARKS
from tapeless.train.metrics import read_metrics

STYLES = {"fine": "green", "look": "yellow", "bad": "bold red"}


def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    json: Json = False,
) -> None:
    """Say in plain words how a run is doing: the likeliest cause of its trouble, what to do, and the evidence.

    Reads the run's metrics: what was learned beside what guessing gets, how large updates and gradients were, held-out
    loss, silent units. Exits with 1 if something is bad.

    Example: tapeless doctor runs/ops-102k-001
    """
    metrics = read_metrics(run)
    diagnosis, *evidence = diagnose(metrics, read_setup(run))
    bad = diagnosis.verdict == "bad"
    if json:
        found = [asdict(each) for each in evidence]
        print_json({"run": str(run), "ok": not bad, "diagnosis": asdict(diagnosis), "findings": found})
    else:
        _print(diagnosis, evidence)
    if bad:
        raise typer.Exit(1)


def _print(diagnosis: Observation, evidence: list[Observation]) -> None:
    style, mark = STYLES[diagnosis.verdict], MARKS[diagnosis.verdict]
    console.print(f"[{style}]{mark} {diagnosis.kind}[/]")
    console.print(Padding(escape(diagnosis.sentence), (0, 0, 0, 2)))
    if diagnosis.remedy:
        console.print(Padding(f"[bold]→ {escape(diagnosis.remedy)}[/]", (0, 0, 0, 2)))
    table = Table(box=None, show_header=False, padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in evidence:
        style, mark = STYLES[finding.verdict], MARKS[finding.verdict]
        table.add_row(f"[{style}]{mark}[/]", finding.kind, f"[dim]{escape(finding.sentence)}[/]")
    if evidence:
        console.print("\n[dim]What it rests on[/]")
        console.print(table)
