"""python -m tools.mutants: makes mutants of the mathematics and sees whether the suite notices each of them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tools.figures.places import machine
from tools.mutants import journal, report
from tools.mutants.judge import Judge, UnhealthyError, Verdict
from tools.mutants.make import Mutant, all_mutants, sampled
from tools.mutants.suite import COLLECTED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "mutants.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose name has this in it")
    parser.add_argument("--all", action="store_true", help="every mutant, not a share of them: hours")
    parser.add_argument(
        "--again", action="store_true", help="judge only what the last run left alive or did not come to"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    options = parser.parse_args()
    mutants = [mutant for mutant in all_mutants(ROOT / "src" / "tapeless") if options.only in mutant.name]
    mutants = mutants if options.all else sampled(mutants)
    if not mutants:
        print(f"no mutant has {options.only!r} in its name.", file=sys.stderr)
        return 2
    began, known = time.monotonic(), journal.killed(mutants) if options.again else []
    settled = {verdict.mutant.name for verdict in known}
    if not options.again:
        journal.begin()
    try:
        verdicts = known + _judged([mutant for mutant in mutants if mutant.name not in settled], options.jobs)
    except UnhealthyError as error:
        print(error, file=sys.stderr)
        return 2
    print(report.screen(verdicts))
    print(f"{(time.monotonic() - began) / 60:.0f} minutes, {options.jobs} at a time")
    if not options.only:
        command = "python -m tools.mutants" + (" --all" if options.all else "")
        report.write_figures(DOCS, verdicts, f"{date.today().isoformat()}, {machine()}, `{command}`")
    return 1 if report.unexplained(verdicts) else 0


def _judged(mutants: list[Mutant], jobs: int) -> list[Verdict]:
    verdicts: list[Verdict] = []
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("reading the suite", total=len(mutants))

        def note(verdict: Verdict) -> None:
            verdicts.append(verdict)
            journal.keep(verdict)
            alive = len(report.survivors(verdicts))
            if verdict.how == "survived":
                progress.console.print(f"survived: {verdict.mutant.name}", markup=False, highlight=False)
            progress.update(bar, advance=1, description=f"{alive} survived, last {verdict.mutant.file}")

        judge = Judge(mutants, jobs, note)
        unwanted = [f"-pno:{plugin}" for plugin in ("terminal", "cacheprovider", "faulthandler", "xdist")]
        os.chdir(ROOT)
        status = pytest.main([*unwanted, "--override-ini=addopts=--import-mode=importlib", *COLLECTED], plugins=[judge])
        if judge.trouble or status:
            raise judge.trouble or UnhealthyError(
                f"pytest could not collect the suite ({pytest.ExitCode(status).name})."
            )
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
