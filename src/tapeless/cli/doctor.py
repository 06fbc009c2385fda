"""`tapeless doctor`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.cli.common import Json, console, print_json
from tapeless.train.doctor import Finding, diagnose
from tapeless.train.metrics import read_metrics

MARKS = {"fine": "[green]✓[/]", "look": "[yellow]![/]", "bad": "[bold red]✗[/]"}


def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    json: Json = False,
) -> None:
    """Say in plain words how a run is doing, with the evidence.

    Reads the run's metrics: whether gradients vanish or explode, units are dead, the model overfits, the learning rate
    is too high or too low. Exits with 1 if something is bad.

    Example: tapeless doctor runs/ops-102k-001
    """
    findings = diagnose(read_metrics(run))
    bad = any(finding.verdict == "bad" for finding in findings)
    if json:
        print_json({"run": str(run), "ok": not bad, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    if bad:
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        remedy = f"\n[dim]→ {escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(MARKS[finding.verdict], f"[bold]{escape(finding.kind)}[/]", escape(finding.sentence) + remedy)
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in MARKS}
    if counts["bad"]:
        console.print(f"\n[bold red]{counts['bad']} of {len(findings)} are bad[/], {counts['look']} to look at.")
    elif counts["look"]:
        console.print(f"\n[yellow]Nothing is bad, {counts['look']} of {len(findings)} to look at.[/]")
    else:
        console.print("\n[bold green]All is well.[/]")
