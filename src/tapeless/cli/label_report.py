"""What a labelling run came to, as a table and as JSON."""

from __future__ import annotations

import time as clock
from typing import Any

from rich.markup import escape
from rich.table import Table

from tapeless.cli.common import console, own_command
from tapeless.cli.paths import quoted
from tapeless.labelling.scores import OPEN_FRAMES, Report
from tapeless.train.session import Session

HEADINGS = ("what was held out", "precision", "recall", "F1")


def report_document(session: Session, stopped: str | None, report: Report, seconds: float) -> dict[str, Any]:
    return {
        "run": str(session.run.folder),
        "steps": session.trainer.step,
        "stopped": stopped,
        "seconds": seconds,
        "cpu_seconds": clock.process_time(),
        **report.document(),
    }


def print_report(session: Session, report: Report, seconds: float) -> None:
    table = Table(box=None, header_style="dim")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for name, found in _rows(report):
        table.add_row(escape(name), *_shares(found))
    console.print(table)
    if report.threshold is not None:
        console.print(f"[dim]{_chosen(report)}: what fits the training data best[/]")
    if report.better_than_baselines is False:
        console.print(f"[yellow]{escape(_worse(session, report))}[/]", soft_wrap=True)
    folder = session.run.folder
    console.print(
        f"Average precision {report.average_precision:.4f}, after {seconds:.0f} s. The run is in "
        f"[bold]{escape(str(folder))}[/]; the picture is precision-recall.svg.", soft_wrap=True,
    )  # fmt: skip
    what = "--fasta other.fa -o other" if report.feature else "--signal other.npy -o probabilities.npy"
    console.print(f"[dim]next:[/] {escape(f'{own_command()} label predict {quoted(folder)}')} {what}", soft_wrap=True)


def _chosen(report: Report) -> str:
    told = f"yes from a probability of {report.threshold:.3f}"
    if report.cut is None:
        return told
    return f"{told}, gaps of up to {report.cut.gap} bases closed, stretches of {report.cut.shortest} bases or more"


def _rows(report: Report) -> list[tuple[str, Any]]:
    if report.threshold is None:
        return [(f"class {number}", each) for number, each in enumerate(report.classes)]
    if report.feature is None:
        return [("class 1", report.classes[1])]
    several = plural(report.feature)
    rows: list[tuple[str, Any]] = []
    for name, found in (report.baselines or {}).items():
        told = f" of {report.shortest_open_frame} bases or more" if name == OPEN_FRAMES else ""
        rows.append((f"{name}{told}: bases in {several}", found))
    rows.append((f"model: bases in {several}", report.classes[1]))
    if report.stretches is not None:
        rows.append((f"model: {several}, both ends exact", report.stretches["both"].exact))
        rows.append((f"model: {several}, half in common", report.stretches["both"].half))
    return rows


def _worse(session: Session, report: Report) -> str:
    settings = session.request.settings
    baselines = report.baselines or {}
    names = report.no_better_than()
    figures = " and ".join(f"{baselines[name].f1:.4f}" for name in names)
    return (
        f"The model is no better than {' and '.join(names)} (F1 {report.classes[1].f1 or 0:.4f} against {figures}), "
        f"which need no network: do not rely on it. Try more updates "
        f"(--steps {2 * session.trainer.step}), a lower rate (--lr {(settings.lr or 0) / 3:.1e}), or more annotated "
        f"sequence; `{own_command()} doctor {quoted(session.run.folder)}` says how the training went."
    )


def _shares(found: Any) -> list[str]:
    return ["–" if value is None else f"{value:.4f}" for value in (found.precision, found.recall, found.f1)]


def plural(feature: str) -> str:
    """Of a type of feature, as people say it."""
    return "exons" if feature == "exon" else feature
