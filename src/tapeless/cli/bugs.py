"""`tapeless check --bugs`: backprop bugs, each planted and looked for. `make bugs` gives it its whole catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from tapeless.check.everything import BugVerdict, Checker, check_ops, run_catalogue
from tapeless.check.planted import PLANTED, Bug
from tapeless.cli.common import console, print_json, table
from tapeless.cli.progress import one_by_one


def run_bugs(json: bool, bugs: Sequence[Bug] = PLANTED, check: Checker = check_ops) -> list[BugVerdict]:
    verdicts = list(run_catalogue(one_by_one(bugs, lambda bug: bug.name, quiet=json), check))
    missed = [verdict.bug.name for verdict in verdicts if not verdict.caught]
    caught, named = len(verdicts) - len(missed), sum(verdict.named for verdict in verdicts)
    if json:
        report = [_document(verdict) for verdict in verdicts]
        print_json({"bugs": len(verdicts), "caught": caught, "named": named, "missed": missed, "report": report})
    else:
        console.print(table(("bug", "where it is", "caught by", "the report names"), map(_row, verdicts)))
        colour, count = ("bold red", f"{caught} of {len(verdicts)}") if missed else ("bold green", f"All {caught}")
        console.print(f"\n[{colour}]{count} bugs are caught[/], {named} of them by the name of what has them.")
    if missed:
        raise typer.Exit(1)
    return verdicts


def _document(verdict: BugVerdict) -> dict[str, str | bool | None]:
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


def _row(verdict: BugVerdict) -> tuple[str, ...]:
    bug, finding = verdict.bug, verdict.finding
    if finding is None:
        return bug.name, bug.where, "[bold red]missed[/]", ""
    return bug.name, bug.where, finding.checker, f"[{'green' if verdict.named else 'yellow'}]{finding.place}[/]"
