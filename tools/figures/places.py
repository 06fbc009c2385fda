"""Where figures stand: between `<!-- figures: NAME -->` and `<!-- end -->`, in a sentence or on lines of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tapeless.bench.environment import environment

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"(<!-- figures: ([\w -]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def machine() -> str:
    """The machine that a figure is of, in words."""
    told = environment()
    return f"{told['cores']} cores of {told['processor']}"


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def placed() -> Iterator[tuple[Path, str, str]]:
    """Page, name of the figure, and what stands there."""
    for page in pages():
        for _, name, text, _ in PLACE.findall(page.read_text(encoding="utf-8")):
            yield page, name, text


def write(figures: dict[str, str]) -> list[Path]:
    """Put these figures wherever they stand; returns the pages that have changed."""
    changed = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = PLACE.sub(lambda found: f"{found[1]}{figures.get(found[2], found[3])}{found[4]}", before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed
