"""What a labelling run came to, in words."""

from __future__ import annotations

from typing import Any

from tapeless.labelling.scores import OPEN_FRAMES, LabelReport
from tapeless.tasks.task import Ended, Farewell

HEADINGS = ("what was held out", "precision", "recall", "F1")


def farewell(ended: Ended, report: LabelReport) -> Farewell:
    what = "--fasta other.fa -o other" if report.feature else "--signal other.npy -o probabilities.npy"
    return Farewell(
        headings=HEADINGS,
        rows=tuple((name, *_shares(found)) for name, found in _rows(report)),
        remark="" if report.threshold is None else f"{_chosen(report)}: what fits the training data best",
        warning=_worse(ended, report) if report.better_than_baselines is False else "",
        result=f"Average precision {report.average_precision:.4f}",
        beside="the picture is precision-recall.svg",
        next=((f"{ended.command} label predict {ended.spelled} {what}", "label something with it"),),
    )


def _chosen(report: LabelReport) -> str:
    told = f"yes from a probability of {report.threshold:.3f}"
    if report.cut is None:
        return told
    return f"{told}, gaps of up to {report.cut.gap} bases closed, stretches of {report.cut.shortest} bases or more"


def _rows(report: LabelReport) -> list[tuple[str, Any]]:
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


def _worse(ended: Ended, report: LabelReport) -> str:
    baselines = report.baselines or {}
    names = report.no_better_than()
    figures = " and ".join(f"{baselines[name].f1:.4f}" for name in names)
    return (
        f"The model is no better than {' and '.join(names)} (F1 {report.classes[1].f1 or 0:.4f} against {figures}), "
        f"which need no network: do not rely on it. Try more updates "
        f"(--steps {2 * ended.step}), a lower rate (--lr {(ended.lr or 0) / 3:.1e}), or more annotated "
        f"sequence; `{ended.command} doctor {ended.spelled}` says how the training went."
    )


def _shares(found: Any) -> list[str]:
    return ["–" if value is None else f"{value:.4f}" for value in (found.precision, found.recall, found.f1)]


def plural(feature: str) -> str:
    """Of a type of feature, as people say it."""
    return "exons" if feature == "exon" else feature
