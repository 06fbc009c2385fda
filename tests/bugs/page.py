"""What `make bugs` writes: the sums between the markers of docs/bugs.md, and a line for each bug into results.tsv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tapeless.check.everything import BugVerdict
from tapeless.check.planted import PLANTED
from tests.bugs.rules import FLOAT64, RULES, Judged

PAGE = Path(__file__).parents[2] / "docs" / "bugs.md"
RESULTS = Path(__file__).with_name("results.tsv")
COLUMNS = ("bug", "in", "caught by", "naming", *RULES)
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"
CAUGHT, MISSED, OUTSIDE, UNABLE = "●", "·", "–", "n/a"


def write(verdicts: Sequence[BugVerdict], judged: Sequence[Judged]) -> None:
    rows = list(results(verdicts, judged))
    RESULTS.write_text("".join("\t".join(row) + "\n" for row in (COLUMNS, *rows)), encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    named = sum(verdict.named for verdict in verdicts)
    PAGE.write_text(f"{before}{BEGIN}\n\n{report(rows, named)}\n{END}{after}", encoding="utf-8")


def results(verdicts: Sequence[BugVerdict], judged: Sequence[Judged]) -> Iterator[tuple[str, ...]]:
    """A row for each bug: what caught it, what that names, and the mark of every rule."""
    for verdict, each in zip(verdicts, judged, strict=True):
        finding = verdict.finding
        ours = ("missed", "") if finding is None else (finding.checker, finding.place)
        yield (verdict.bug.name, verdict.bug.where, *ours, *(_mark(each, rule) for rule in RULES))


def report(rows: Sequence[Sequence[str]], named: int) -> str:
    """The sums of the rows, and in words the dozen that everybody can plant."""
    first = Counter(row[2] for row in rows)
    missed = first.pop("missed", 0)
    lines = ["| rule | caught | missed | of these outside what it looks at |", "|---|--:|--:|--:|"]
    lines.append(f"| our checkers | **{len(rows) - missed}** | {missed} | 0 |")
    for at, rule in enumerate(RULES, start=4):
        marks = Counter(row[at] for row in rows)
        outside = marks[OUTSIDE] + marks[UNABLE]
        lines.append(f"| {rule} | {marks[CAUGHT]} | {len(rows) - marks[CAUGHT]} | {outside} |")
    lines += [
        "",
        f"{len(rows)} bugs; our first finding names what has the bug for {named} of them.",
        "",
        "| first caught by | bugs |",
        "|---|--:|",
        *(f"| {checker} | {count} |" for checker, count in first.most_common()),
        "",
        "### The dozen of the lessons",
        "",
        "| bug | what it is | what a user would see |",
        "|---|---|---|",
        *(f"| `{bug.name}` | {bug.what} | {bug.seen} |" for bug in PLANTED),
    ]
    return "\n".join([*lines, ""])


def _mark(judged: Judged, rule: str) -> str:
    if not judged.changed:
        return OUTSIDE
    if judged.bug.where.endswith("on cpu") and rule in FLOAT64:
        return UNABLE
    return CAUGHT if judged.refused[rule] else MISSED
