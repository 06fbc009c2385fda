"""How things show themselves: as plain text in a terminal, as HTML in a notebook. Whoever is shown says once what there
is to see, as a `Sheet`. The HTML has the page's own colours, so that it is readable on dark and on light, and nothing
in it comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any
from unicodedata import combining

VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
NUMBER = "text-align:right;font-variant-numeric:tabular-nums"
CELL = "padding:0 1em 0 0;border:0;vertical-align:top;text-align:left;white-space:pre-wrap;background:none"


@dataclass(frozen=True)
class Table:
    """Rows under headings; of the columns named in `right`, numbers stand under numbers."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()
    title: str = ""  # where there is one, a notebook folds the table behind it, and a terminal leaves it out


@dataclass(frozen=True)
class Sheet:
    """A title, lines of label and text, tables, and remarks."""

    title: str
    lines: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()


class Shown:
    """Says what it is in `repr`, `print` and at the end of a notebook's cell."""

    def _sheet(self) -> Sheet:
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(self._sheet())

    def _repr_html_(self) -> str:
        return as_html(self._sheet())


class Told:
    """Where `str` tells all there is, in plain words: `repr` does, too, and so does the end of a notebook's cell."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap;background:none;color:inherit">{escape(str(self))}</pre>'


def as_text(sheet: Sheet) -> str:
    wide = max((len(label) for label, _ in sheet.lines), default=0)
    parts = [sheet.title, *(f"  {label:<{wide}}  {text}".rstrip() for label, text in sheet.lines)]
    for table in sheet.tables:
        if not table.title:
            parts += aligned(table)
    return "\n".join([*parts, *(f"  {remark}" for remark in sheet.remarks)])


def aligned(table: Table) -> list[str]:
    """Its rows as lines of text."""
    rows = [table.headings, *table.rows] if any(table.headings) else list(table.rows)
    widths = [max(map(_width, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        blanks = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False)]
        padded = enumerate(zip(row, blanks, strict=True))
        cells = [gap + cell if index in table.right else cell + gap for index, (cell, gap) in padded]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _width(text: str) -> int:
    """In columns: the hat of x̂ takes none of its own."""
    return sum(not combining(character) for character in text)


def as_html(sheet: Sheet) -> str:
    parts = [f"<div><strong>{escape(sheet.title)}</strong>"]
    if sheet.lines:
        parts.append(html_table(Table((), [*sheet.lines]), dim_first=True))
    for table in sheet.tables:
        made = html_table(table)
        parts.append(f"<details><summary>{escape(table.title)}</summary>{made}</details>" if table.title else made)
    parts += [f"<div>{escape(remark)}</div>" for remark in sheet.remarks]
    return "".join([*parts, "</div>"])


def html_table(table: Table, dim_first: bool = False) -> str:
    def cell(tag: str, index: int, text: str, extra: str = "") -> str:
        style = CELL + (f";{NUMBER}" if index in table.right else "") + extra
        return f'<{tag} style="{style}">{escape(text)}</{tag}>'

    head = "".join(cell("th", index, text, ";opacity:.65") for index, text in enumerate(table.headings))
    body = "".join(
        "<tr>"
        + "".join(cell("td", i, text, ";opacity:.65" if dim_first and not i else "") for i, text in enumerate(row))
        + "</tr>"
        for row in table.rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    style = "border:0;border-collapse:collapse;margin:.3em 0;font-size:inherit"
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def flops(count: float) -> str:
    for unit in ("", "K", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:.3g} PFLOP"


def shape(sizes: Any) -> str:
    return "×".join(map(str, sizes))


def visible(text: str, token: int) -> str:
    """What a token stands for, so that it can be seen; its number where that is nothing by itself."""
    shown = "".join(VISIBLE.get(each, each if each.isprintable() else f"\\x{ord(each):x}") for each in text)
    return shown.replace("\N{REPLACEMENT CHARACTER}", "") or f"‹{token}›"
