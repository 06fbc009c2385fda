"""docs/bugs.md between its markers: what caught every bug, and what other projects' acceptance rules make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tapeless.check.everything import Verdict
from tests.bugs.rules import FLOAT64, RULES, Judged

PAGE = Path(__file__).parents[2] / "docs" / "bugs.md"
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"
CAUGHT, MISSED, OUTSIDE, UNABLE = "●", "·", "–", "n/a"


def write(verdicts: Sequence[Verdict], judged: Sequence[Judged]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{report(verdicts, judged)}\n{END}{after}", encoding="utf-8")


def report(verdicts: Sequence[Verdict], judged: Sequence[Judged]) -> str:
    lines = ["| rule | caught | missed | of these outside what it looks at |", "|---|---|---|---|"]
    caught = sum(verdict.caught for verdict in verdicts)
    named = sum(verdict.named for verdict in verdicts)
    lines.append(f"| our checkers | **{caught}** | {len(verdicts) - caught} | 0 |")
    for rule in RULES:
        refused = sum(each.refused[rule] for each in judged)
        outside = sum(_mark(each, rule) in (OUTSIDE, UNABLE) for each in judged)
        lines.append(f"| {rule} | {refused} | {len(judged) - refused} | {outside} |")
    lines += [
        "",
        f"{len(verdicts)} bugs; our first finding names what has the bug for {named} of them.",
        f"{CAUGHT} caught, {MISSED} accepted, {OUTSIDE} nothing changes in what the rule looks at, {UNABLE} the rule "
        "needs float64, which the kernel does not have.",
        "",
        "| bug | in | caught by, naming | " + " | ".join(RULES) + " |",
        "|---|---|---|" + "---|" * len(RULES),
    ]
    for verdict, each in zip(verdicts, judged, strict=True):
        bug, finding = verdict.bug, verdict.finding
        ours = "missed" if finding is None else f"{finding.checker}, {finding.place}"
        marks = " | ".join(_mark(each, rule) for rule in RULES)
        lines.append(f"| `{bug.name}` | {bug.where} | {ours} | {marks} |")
    lines += ["", "### The bugs", "", "| bug | what it is | what a user would see | in public |", "|---|---|---|---|"]
    lines += [f"| `{b.name}` | {b.what} | {b.seen} | {b.public or ''} |" for b in (v.bug for v in verdicts)]
    return "\n".join([*lines, ""])


def _mark(judged: Judged, rule: str) -> str:
    if not judged.changed:
        return OUTSIDE
    if judged.bug.where.endswith("on cpu") and rule in FLOAT64:
        return UNABLE
    return CAUGHT if judged.refused[rule] else MISSED
