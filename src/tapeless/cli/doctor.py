"""`tapeless doctor`"""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.markup import escape
from rich.padding import Padding

from tapeless.cli.common import Json, RunFolder, console, print_json, table
from tapeless.train.doctor import Observation, diagnose, read_setup
from tapeless.train.doctor.findings import MARKS
from tapeless.train.metrics import read_metrics

STYLES = {"fine": "green", "look": "yellow", "bad": "bold red"}


def doctor(run: RunFolder, json: Json = False) -> None:
    """Say in plain words how a run is doing: the likeliest cause of its trouble, what to do, and the evidence.

    Reads the run's metrics: the loss beside what guessing gets, the sizes of updates and gradients, the validation
    loss, dead units. The exit code is 1 if something is bad.

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
    console.print(f"{_mark(diagnosis)} [{STYLES[diagnosis.verdict]}]{diagnosis.kind}[/]")
    console.print(Padding(escape(diagnosis.sentence), (0, 0, 0, 2)))
    if diagnosis.remedy:
        console.print(Padding(f"[bold]→ {escape(diagnosis.remedy)}[/]", (0, 0, 0, 2)))
    if evidence:
        console.print("\n[dim]What it rests on[/]")
        rows = [(_mark(each), each.kind, f"[dim]{escape(each.sentence)}[/]") for each in evidence]
        console.print(table(("<", "<", ""), rows))


def _mark(seen: Observation) -> str:
    return f"[{STYLES[seen.verdict]}]{MARKS[seen.verdict]}[/]"
