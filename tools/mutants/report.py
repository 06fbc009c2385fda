"""What a run found, told on the screen and in docs/mutants.md."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.mutants.judge import Verdict
from tools.mutants.make import shortened

SURVIVORS = Path(__file__).with_name("survivors.toml")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def explanations() -> dict[str, str]:
    """Why a mutant survives, by its name."""
    entries = tomllib.loads(SURVIVORS.read_text())["explained"]
    return {mutant: entry["why"] for entry in entries for mutant in entry["mutants"]}


def survivors(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.how == "survived"]


def unexplained(verdicts: list[Verdict]) -> list[Verdict]:
    why = explanations()
    return [verdict for verdict in survivors(verdicts) if verdict.mutant.name not in why]


def summary(verdicts: list[Verdict]) -> str:
    """Killed of all, and of those that compute something else: what an explanation is for is a mutant that does not."""
    made, left, holes = len(verdicts), len(survivors(verdicts)), len(unexplained(verdicts))
    killed = made - left
    return (
        f"{made} mutants: {killed} killed ({killed / made:.1%}), {left - holes} survivors that compute what the "
        f"original computes, {holes} unexplained. Of those that compute something else, "
        f"{killed / (killed + holes):.1%} are killed."
    )


def screen(verdicts: list[Verdict]) -> str:
    why, left = explanations(), survivors(verdicts)
    lines = [*_table("file", _by_file(verdicts)), "", *_table("kind", _by_kind(verdicts)), ""]
    for verdict in left:
        mutant = verdict.mutant
        lines += [
            f"survived: src/tapeless/{mutant.file}:{mutant.line} in {mutant.function} ({mutant.kind})",
            *(f"  {sign} {text}" for sign, text in zip("-+", shortened(mutant.before, mutant.after), strict=True)),
            f"  {why.get(mutant.name, 'NOT EXPLAINED: ' + mutant.name)}",
        ]
    killed = {verdict.mutant.name for verdict in verdicts if verdict.how != "survived"}
    lines += [f"explained, but killed by now: {name}" for name in why if name in killed]
    how = Counter(verdict.how for verdict in verdicts)
    lines.append(f"{summary(verdicts)} ({_listed(how)})")
    return "\n".join(lines)


def write_figures(docs: Path, verdicts: list[Verdict], title: str) -> None:
    why = explanations()
    by_reason: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in survivors(verdicts):
        by_reason[why.get(verdict.mutant.name, "not explained")].append(verdict)
    how = Counter(verdict.how for verdict in verdicts)
    lines = [
        f"{title}: {summary(verdicts)} ({_listed(how)}.)",
        "",
        *_markdown("kind", _by_kind(verdicts)),
        "",
        f"### The {len(survivors(verdicts))} survivors",
        "",
    ]
    for reason, left in by_reason.items():
        lines += [reason, ""]
        for mutant in (verdict.mutant for verdict in left):
            before, after = shortened(mutant.before, mutant.after)
            lines.append(f"- {mutant.file}, {mutant.function}: `{before}` → `{after}`")
        lines.append("")
    text = docs.read_text(encoding="utf-8")
    start, rest = text.index(BEGIN) + len(BEGIN), text.index(END)
    docs.write_text(text[:start] + "\n" + "\n".join(lines) + text[rest:], encoding="utf-8")


def _listed(how: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in how.most_common())


def _by_file(verdicts: list[Verdict]) -> dict[str, tuple[int, int]]:
    return _counted((verdict.mutant.file, verdict) for verdict in verdicts)


def _by_kind(verdicts: list[Verdict]) -> dict[str, tuple[int, int]]:
    return _counted((verdict.mutant.kind, verdict) for verdict in verdicts)


def _counted(pairs: Iterable[tuple[str, Verdict]]) -> dict[str, tuple[int, int]]:
    """How many were made and how many survived, by name."""
    made: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for name, verdict in pairs:
        made[name] += 1
        left[name] += verdict.how == "survived"
    return {name: (count, left[name]) for name, count in sorted(made.items())}


def _table(title: str, rows: dict[str, tuple[int, int]]) -> list[str]:
    return [f"{title:34}{'made':>6}{'killed':>8}", *(f"{n:34}{m:6}{m - left:8}" for n, (m, left) in rows.items())]


def _markdown(title: str, rows: dict[str, tuple[int, int]]) -> list[str]:
    return [
        f"| {title} | mutants | killed |",
        "|---|---|---|",
        *(f"| {n} | {m} | {m - s} |" for n, (m, s) in rows.items()),
    ]
