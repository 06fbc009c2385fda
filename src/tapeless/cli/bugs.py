"""`tapeless check --bugs`: the catalogue of backprop bugs, each planted and looked for."""

from __future__ import annotations

import typer
from rich.table import Table

from tapeless.check.bugs.catalogue import BUGS
from tapeless.check.bugs.run import Verdict, run_catalogue
from tapeless.cli.common import console, print_json
from tapeless.cli.progress import one_by_one


def run_bugs(json: bool) -> None:
    bugs = one_by_one(BUGS, lambda bug: bug.name, quiet=json)
    verdicts = list(run_catalogue(bugs))
    missed = [verdict for verdict in verdicts if not verdict.caught]
    caught, named = len(verdicts) - len(missed), sum(verdict.named for verdict in verdicts)
    if json:
        print_json(
            {
                "bugs": len(verdicts),
                "caught": caught,
                "named": named,
                "missed": [verdict.bug.name for verdict in missed],
                "report": [_row(verdict) for verdict in verdicts],
            }
        )
    else:
        _print(verdicts)
        colour = "bold red" if missed else "bold green"
        console.print(
            f"\n[{colour}]{caught} of {len(verdicts)} bugs are caught[/], {named} of them by the name of what has them."
        )
    if missed:
        raise typer.Exit(1)


def _row(verdict: Verdict) -> dict[str, str | bool | None]:
    bug, finding = verdict.bug, verdict.finding
    return {
        "bug": bug.name,
        "where": bug.where,
        "what": bug.what,
        "caught_by": finding.checker if finding else None,
        "place": finding.place if finding else None,
        "detail": finding.detail if finding else None,
        "named": verdict.named,
    }


def _print(verdicts: list[Verdict]) -> None:
    table = Table(box=None, header_style="dim")
    for column in ("bug", "where it is", "caught by", "the report names"):
        table.add_column(column)
    for verdict in verdicts:
        finding = verdict.finding
        if finding is None:
            table.add_row(verdict.bug.name, verdict.bug.where, "[bold red]missed[/]", "")
        else:
            colour = "green" if verdict.named else "yellow"
            table.add_row(verdict.bug.name, verdict.bug.where, finding.checker, f"[{colour}]{finding.place}[/]")
    console.print(table)
