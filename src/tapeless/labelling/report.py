"""What a labelling run came to, in words."""

from __future__ import annotations

from typing import Any

from tapeless.labelling.scores import LabelReport
from tapeless.tasks.task import Ended, Farewell

HEADINGS = ("what was held out", "precision", "recall", "F1")


def farewell(ended: Ended, report: LabelReport) -> Farewell:
    what = "--fasta other.fa -o other" if report.feature else "--signal other.npy -o probabilities.npy"
    remark = "" if report.threshold is None else f"yes from a probability of {report.threshold:.3f}: chosen in training"
    if report.gained is not None and not report.uses_network:
        remark = "letters alone find genes here: the network's scores made unseen genes no likelier"
    return Farewell(
        headings=HEADINGS,
        rows=tuple((name, *_shares(found)) for name, found in _rows(report)),
        remark=remark,
        warning=_worse(ended, report) if report.better_than_baselines is False else "",
        result=f"Average precision {report.average_precision:.4f}",
        beside="the pictures are precision-recall.svg and reliability.svg",
        next=((f"{ended.command} label predict {ended.spelled} {what}", "label something with it"),),
    )


def _rows(report: LabelReport) -> list[tuple[str, Any]]:
    if report.feature is None:
        if report.threshold is None:
            return [(f"class {number}", each) for number, each in enumerate(report.classes)]
        return [("class 1", report.classes[1])]
    several = plural(report.feature)
    rows: list[tuple[str, Any]] = []
    for name, found in {**report.baselines, "model": report.agreement}.items():
        assert found is not None
        rows.append((f"{name}: bases in {several}", found.bases))
        rows.append((f"{name}: {several}, both ends exact", found.exact))
        if report.baselines:
            rows.append((f"{name}: whole genes", found.genes))
    return rows


def _worse(ended: Ended, report: LabelReport) -> str:
    assert report.agreement is not None
    names = report.no_better_than()
    own, others = report.agreement, [report.baselines[name] for name in names]
    figures = " and ".join(f"{each.bases.f1:.4f}, {each.exact.f1:.4f}" for each in others)
    return (
        f"The model is no better than {' and '.join(names)} (F1 of bases and of exact ends {own.bases.f1:.4f}, "
        f"{own.exact.f1:.4f} against {figures}): do not rely on it. Try more annotated sequence: --fasta and --gff can "
        f"be repeated; `{ended.command} doctor {ended.spelled}` says how the training went."
    )


def _shares(found: Any) -> list[str]:
    return ["–" if value is None else f"{value:.4f}" for value in (found.precision, found.recall, found.f1)]


def plural(feature: str) -> str:
    """Of a type of feature, as people say it."""
    return "exons" if feature == "exon" else feature
