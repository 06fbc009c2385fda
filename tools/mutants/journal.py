"""Verdicts as they come, kept in a file, so that a run that was stopped goes on, and a new test is tried on survivors.

A mutant that was killed stays so as long as the file it is made from is what it was.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from zlib import crc32

from tools.mutants.judge import Verdict
from tools.mutants.make import Mutant

ROOT = Path(__file__).parents[2]
JOURNAL = ROOT / ".mutants.jsonl"


def begin() -> None:
    JOURNAL.unlink(missing_ok=True)


def keep(verdict: Verdict) -> None:
    said = {
        "name": verdict.mutant.name,
        "source": _source(verdict.mutant.file),
        "killer": verdict.killer,
        "how": verdict.how,
        "tests": verdict.tests,
        "seconds": round(verdict.seconds, 2),
    }
    with JOURNAL.open("a") as file:
        file.write(json.dumps(said) + "\n")


def killed(mutants: list[Mutant]) -> list[Verdict]:
    """Those of them that the journal has as killed."""
    lines = JOURNAL.read_text().splitlines() if JOURNAL.exists() else []
    said = {each["name"]: each for each in map(json.loads, lines) if each["how"] != "survived"}
    found = []
    for mutant in mutants:
        each = said.get(mutant.name)
        if each and each["source"] == _source(mutant.file):
            found.append(Verdict(mutant, each["killer"], each["how"], each["tests"], each["seconds"]))
    return found


@cache
def _source(file: str) -> int:
    return crc32((ROOT / "src" / "tapeless" / file).read_bytes())
