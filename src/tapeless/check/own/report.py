"""The verdict on a kernel: as text, as JSON, as a page with a picture of where the error lies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.check.finding import Judgement
from tapeless.check.own.bounds import Compared
from tapeless.check.own.gradient import Report
from tapeless.ops.contract import Array
from tapeless.shown import Told

SCHEMA = 1
CELLS = 96  # of a picture, on either side
VERDICTS = {
    "right": "right: the kernel is what its definition says.",
    "right, with limits": "right, with limits: the kernel is what its definition says, but for what is listed.",
    "wrong": "wrong: the kernel is not what its definition says.",
    "cannot tell": "cannot tell: the kernel agrees with its definition, but whether that is right is not known.",
    "refused": "refused:",
}


@dataclass(frozen=True, repr=False)
class Mistake(Told):
    """One class of mistake: its name, what was found, the smallest case that shows it, and a script that does."""

    kind: str
    sentence: str
    case: str  # the smallest
    again: str  # as it was met: what `case=` takes
    compared: Compared | None = None
    others: tuple[str, ...] = ()  # further results that are wrong there
    script: str = ""
    inputs: tuple[Any, ...] = ()
    dy: tuple[Array, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}, at {self.case}"

    def document(self) -> dict[str, Any]:
        """What `--json` has of it."""
        one = self.compared
        return {
            "class": self.kind,
            "sentence": self.sentence,
            "case": self.case,
            "again": self.again,
            "result": one.name if one else None,
            "position": list(one.where) if one else None,
            "found": number(one.found) if one else None,
            "expected": number(one.true) if one else None,
            "error_ulps": number(one.error) if one else None,
            "allowed_ulps": number(one.allowed) if one else None,
            "torch_ulps": number(one.torch) if one else None,
            "script": self.script,
        }


@dataclass(frozen=True)
class Row:
    """The case at which a result came nearest to what is allowed."""

    compared: Compared
    dtype: str
    case: str


@dataclass(frozen=True, repr=False)
class Verdict(Judgement):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    verdict: str  # a key of VERDICTS
    reason: str  # of a refusal; else empty
    definition: Report | None = None  # the proof of the definition's own backward, where it has one
    wrong: tuple[Mistake, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)  # what the kernel does not do, and a sentence
    results: tuple[Row, ...] = ()  # the worst of each result in each dtype
    covered: Mapping[str, int] = field(default_factory=dict)  # cases tried, by group
    left: Mapping[str, int] = field(default_factory=dict)  # cases for which there was no time
    notes: tuple[str, ...] = ()
    kernel: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the kernel is right."""
        return self.verdict in ("right", "right, with limits")

    def __str__(self) -> str:
        return "\n".join([f"{VERDICTS[self.verdict]} {self.reason}".rstrip(), *(f"  {each}" for each in self._lines())])

    def _lines(self) -> Iterator[str]:
        if self.definition is not None and not self.definition.ok:
            head, *rest = str(self.definition).splitlines()
            yield f"the definition is {head}"
            yield from rest
        for each in self.wrong:
            yield str(each)
            yield f"  again: check.op(…, case={each.again!r})"
            yield from (f"  | {line}" for line in each.script.splitlines())
        yield from (f"limit: {word}: {sentence}" for word, sentence in self.limits.items())
        if self.results:
            yield "worst error of each result, in units of the last place:"
            yield from table(self.results)
        yield from self.notes
        if self.covered:
            groups = ", ".join(f"{count} of {name}" for name, count in self.covered.items())
            yield f"tried: {sum(self.covered.values())} cases in {self.seconds:.1f} s ({groups})"
        if self.left:
            groups = ", ".join(f"{count} of {name}" for name, count in self.left.items())
            yield f"no time for {sum(self.left.values())} cases ({groups}): seconds= gives more"

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "verdict": self.verdict,
            "ok": self.ok,
            "reason": self.reason,
            "wrong": [each.document() for each in self.wrong],
            "limits": [{"limit": word, "sentence": sentence} for word, sentence in self.limits.items()],
            "results": [
                {
                    "result": row.compared.name,
                    "dtype": row.dtype,
                    "error_ulps": number(row.compared.error),
                    "allowed_ulps": number(row.compared.allowed),
                    "torch_ulps": number(row.compared.torch),
                    "position": list(row.compared.where),
                    "case": row.case,
                }
                for row in self.results
            ],
            "covered": dict(self.covered),
            "no_time": dict(self.left),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }

    def html(self) -> str:
        """A page by itself: the verdict, and of each mistake and result a picture of its error."""
        parts = [f"<h1>{escape(self.kernel or 'kernel')}: {escape(self.verdict)}</h1>"]
        for each in self.wrong:
            parts.append(f"<h2>{escape(each.kind)}</h2><p>{escape(each.sentence)}<br>at {escape(each.case)}</p>")
            if each.compared is not None:
                parts.append(picture(each.compared))
            if each.script:
                parts.append(f"<pre>{escape(each.script)}</pre>")
        for row in self.results:
            parts.append(f"<h3>{escape(row.compared.name)} in {escape(row.dtype)}, {escape(row.case)}</h3>")
            parts.append(picture(row.compared))
        parts.append(f"<pre>{escape(str(self))}</pre>")
        style = "body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}pre{white-space:pre-wrap}"
        title = f"<title>{escape(self.kernel)}: {escape(self.verdict)}</title>"
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8">{title}<style>{style}</style>{"".join(parts)}</html>'
        )


def number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if value is not None and isfinite(value) else None


def table(rows: tuple[Row, ...]) -> Iterator[str]:
    heads = ("result", "dtype", "error", "allowed", "PyTorch's", "at", "case")
    cells = [
        (
            row.compared.name,
            row.dtype,
            f"{row.compared.error:.3g}",
            f"{row.compared.allowed:.3g}",
            "" if row.compared.torch is None else f"{row.compared.torch:.3g}",
            str(row.compared.where),
            row.case,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in [heads, *cells]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def picture(one: Compared) -> str:
    """The error at each place of a result, in parts of what is allowed: green to yellow, and red above."""
    if one.errors is None or not one.errors.size:
        return ""
    shares = np.atleast_2d(one.errors)
    shares = shares.reshape(-1, shares.shape[-1])
    rows, columns = (min(CELLS, size) for size in shares.shape)
    size = max(3, min(14, 640 // max(rows, columns)))
    cells = []
    for r in range(rows):
        for c in range(columns):
            block = shares[
                r * shares.shape[0] // rows : max((r + 1) * shares.shape[0] // rows, r * shares.shape[0] // rows + 1),
                c * shares.shape[1] // columns : (c + 1) * shares.shape[1] // columns,
            ]
            worst = float(np.nan_to_num(block.max(initial=0), nan=9.0, posinf=9.0))
            cells.append(
                f'<rect x="{c * size}" y="{r * size}" width="{size}" height="{size}" fill="{_colour(worst)}"/>'
            )
    wide, high = columns * size, rows * size
    label = f"error of {one.name} over its positions"
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">'
        f"{''.join(cells)}</svg><p>{shares.shape[0]}×{shares.shape[1]} places; red is more than allowed.</p>"
    )


def _colour(share: float) -> str:
    return "#c22" if share > 1 else f"hsl({150 - 100 * share:.0f} 55% {88 - 30 * share:.0f}%)"


def read(text: str) -> Verdict:
    """A report from another process."""
    seen = json.loads(text)
    wrong = tuple(
        Mistake(each["class"], each["sentence"], each["case"], each["again"], None, (), each["script"])
        for each in seen["wrong"]
    )
    rows = tuple(
        Row(
            Compared(
                each["result"],
                0.0,
                each["error_ulps"] or 0.0,
                each["allowed_ulps"] or 0.0,
                each["torch_ulps"],
                tuple(each["position"]),
                0.0,
                0.0,
            ),
            each["dtype"],
            each["case"],
        )
        for each in seen["results"]
    )
    limits = {each["limit"]: each["sentence"] for each in seen["limits"]}
    return Verdict(
        seen["verdict"],
        seen["reason"],
        None,
        wrong,
        limits,
        rows,
        seen["covered"],
        seen["no_time"],
        tuple(seen["notes"]),
        seen["kernel"],
        seen["seconds"],
    )


def write_html(report: Verdict, path: Path) -> None:
    path.write_text(report.html(), encoding="utf-8")
