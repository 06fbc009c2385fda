"""`make doctor-trials`: run every blind trial, its cure, and the advice; write docs/doctor.md and what the tests read.

python -m tools.doctor --folder runs/doctor      # runs that lie there already are not run again
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from tapeless.train.doctor import read_setup
from tapeless.train.metrics import read_metrics
from tools.doctor.report import Result, advice, ending, followed, guessing, keep, wrong_advice
from tools.doctor.runs import Trial, run_trial
from tools.doctor.trials import BLIND, DEVELOPMENT, HEALTHY

ROOT = Path(__file__).parents[2]
DOCUMENT, RECORDED = ROOT / "docs" / "doctor.md", ROOT / "tests" / "train" / "doctor_runs.jsonl.gz"
NEEDED = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/doctor"))
    parser.add_argument("--development", action="store_true", help="what the rules are tuned on; writes nothing")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    trials = DEVELOPMENT if options.development else BLIND
    results = [_result(trial, options.folder / f"{number:02d}") for number, trial in enumerate(trials)]
    counted = [result for result in results if result.counts]
    right = [result for result in counted if result.findings[0].kind == result.trial.cause]
    wrong = [result for result in counted if wrong_advice(result.trial.cause, result.findings[0])]
    print(f"{len(right)} of {len(counted)} named first, {len(wrong)} with wrong advice")
    if not options.development:
        keep(counted, RECORDED)
        DOCUMENT.write_text(_document(results, options.folder), encoding="utf-8")
    return int(len(right) < NEEDED * len(counted) or bool(wrong))


def _result(trial: Trial, folder: Path) -> Result:
    cured = None
    metrics = _metrics(trial, folder)
    if trial.cause != HEALTHY:
        cured = _metrics(trial.cured(), folder.with_name(f"{folder.name}-cured"))
    result = Result(trial, read_setup(folder), metrics, cured)
    print(f"{folder.name} {trial.preset} {trial.name}: {trial.cause} → {result.findings[0].kind}", flush=True)
    return result


def _metrics(trial: Trial, folder: Path) -> list[dict[str, object]]:
    return read_metrics(folder) if folder.exists() else run_trial(trial, folder)


def _document(results: list[Result], folder: Path) -> str:
    counted = [result for result in results if result.counts]
    struck = [result for result in results if not result.counts]
    right = sum(result.findings[0].kind == result.trial.cause for result in counted)
    wrong = sum(wrong_advice(result.trial.cause, result.findings[0]) for result in counted)
    rows, gains, tried = [], 0, 0
    for number, result in enumerate(results):
        if not result.counts:
            continue
        trial, first = result.trial, result.findings[0]
        said = first.kind if first.kind == trial.cause else f"**{first.kind}**"
        after = "–"
        changed = followed(trial, first.remedy)
        if changed is not None:
            same = changed == replace(trial.cured(), damage=trial.damage)  # the advice is the cure: it was run already
            metrics = _metrics(changed, folder / f"{number:02d}-{'cured' if same else 'followed'}")
            after, tried = _loss(ending(metrics)), tried + 1
            gains += _better(ending(result.metrics), ending(metrics))
        rows.append(
            f"| {trial.preset}, {trial.data}: {trial.name} | {trial.cause} | {said} "
            f"| {', '.join(sorted(advice(first.remedy))) or 'none'} | {guessing(result.metrics):.3g} "
            f"| {_loss(ending(result.metrics))} | {after} |"
        )
    left_out = "; ".join(f"{each.trial.preset}: {each.trial.name} ({each.trial.cause})" for each in struck) or "none"
    return TEXT.format(
        rows="\n".join(rows), right=right, counted=len(counted), share=f"{right / len(counted):.0%}", wrong=wrong,
        tried=tried, gains=gains, day=f"{date.today():%-d %B %Y}", left_out=left_out, development=len(DEVELOPMENT),
    )  # fmt: skip


def _loss(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.3g}"


def _better(before: float | None, after: float | None) -> bool:
    return after is not None and (before is None or after < before)


TEXT = """# Is the doctor right?

`tapeless doctor RUN` names one cause first and gives one advice. Here it is tried on trainings whose true cause is known because it was put there: `make doctor-trials`, last run on {day}.

**{right} of {counted} named first ({share}), wrong advice in {wrong}.** Wrong is advice that would make things worse or do nothing for the true cause. Where the advice names an option it was followed, with everything else as it was: the held-out loss came out lower in {gains} of {tried}.

These trainings were written down before the rules were, and the rules were not changed after they had been seen. What they were tuned on is another list of {development}, of other seeds, sizes, texts and rates. Both are in `tools/doctor/trials.py`. Each has a cure, which undoes what was done and nothing else; a trial whose cure does not end at least 5 % lower counts for nothing, as the trouble put there was none. Left out so: {left_out}.

What guessing gets is the loss of always the same answer: the entropy of the answers, each class counted as it weighs; under squared error the variance of their embeddings. Bold is what was not named as it should be.

| training | true cause | named first | advice | guessing gets | held-out loss | with the advice |
|---|---|---|---|---|---|---|
{rows}
"""  # noqa: E501


if __name__ == "__main__":
    sys.exit(main())
