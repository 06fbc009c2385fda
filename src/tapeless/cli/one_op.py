"""`tapeless check OP`: one op alone."""

from __future__ import annotations

import typer
from rich.markup import escape

from tapeless.backends.backend import backend_named
from tapeless.check.one_op import OpReport, check_one, has_kernels
from tapeless.cli.common import console, print_json, table
from tapeless.cli.progress import one_by_one
from tapeless.errors import TapelessError


def check_named_ops(names: list[str], backend: str, json: bool, others: bool) -> None:
    """Check ops on the cpu unless another backend is asked for: the reference is checked in any case."""
    if others:
        raise TapelessError("an op is proven alone: name ops only, and leave out presets, --set and --bugs.")
    kind = backend_named("cpu" if backend == "reference" else backend)
    reports = [
        check_one(name, kind if backend != "reference" or has_kernels(name, kind) else None)
        for name in one_by_one(names, lambda name: f"op {name}", json)
    ]
    if json:
        print_json({"ok": all(reports), "backend": kind.name, "ops": [_document(report) for report in reports]})
    else:
        for report in reports:
            head, *lines = str(report).splitlines()
            console.print(f"[bold {'green' if report else 'red'}]{escape(head)}[/]")
            parts = [line.strip().partition(": ") for line in lines]
            console.print(table(("<", ""), [(f"  [dim]{what}[/]", escape(said)) for what, _, said in parts]))
    if not all(reports):
        raise typer.Exit(1)


def _document(report: OpReport) -> dict[str, object]:
    return {
        "op": report.name,
        "ok": report.ok,
        "worst_gradient": max((each.error for each in report.gradients), default=None),
        "worst_share_of_tolerance": max((each.share for each in report.results), default=None),
        "worst_share_over_the_range": max((each.share for each in report.ranges), default=None),
        "findings": [str(each) for each in report.findings],
    }
