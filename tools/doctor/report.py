"""What the doctor says of each trial, whether that is right, and what came of following it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tapeless.train.doctor import Observation, Setup, diagnose
from tools.doctor.runs import Trial
from tools.doctor.trials import CLIPPING, DEAD, EXPLODING, FEW, HEALTHY, HIGH, LOW, NOTHING, OVERFITTING, VANISHING

BETTER = 0.95  # a cured run's held-out loss beside the trial's
# What a remedy tells one to do, by the words it has.
ADVICE = {
    "lower the rate": "Divide the learning rate",
    "raise the rate": "Multiply the learning rate",
    "train for longer": "Train for longer",
    "more data": "Get more data",
    "pre-norm": "placement=pre",
    "other first weights": "first weights|smaller weights",
    "check the answers": "belong together",
    "loosen the clip": "--clip",
}
# What helps against each cause. Anything else would make it worse, or do nothing for it.
HELPS = {
    HIGH: {"lower the rate"},
    LOW: {"raise the rate"},
    FEW: {"train for longer"},
    VANISHING: {"pre-norm"},
    EXPLODING: {"other first weights"},
    DEAD: {"other first weights"},
    OVERFITTING: {"more data"},
    NOTHING: {"check the answers"},
    CLIPPING: {"loosen the clip"},
    HEALTHY: set(),
}
OPTIONS = {"lr": float, "steps": int, "placement": str, "clip": float}
KEPT = (
    "kind",
    "step",
    "loss",
    "lr",
    "gradient_norm",
    "gradient_norms",
    "update_ratios",
    "train_loss",
    "accuracy",
    "dead_units",
    "spread",
    "reason",
    "chance_loss",
    "chance_accuracy",
    "examples",
)


@dataclass(frozen=True)
class Result:
    """A trial that was run: what it recorded, and how its cure did where it has one."""

    trial: Trial
    setup: Setup
    metrics: Sequence[Mapping[str, Any]]
    cured: Sequence[Mapping[str, Any]] | None

    @property
    def findings(self) -> list[Observation]:
        return diagnose(self.metrics, self.setup)

    @property
    def counts(self) -> bool:
        """Whether what was put there did harm. Where the data was exchanged, losses are held against their chance."""
        if self.cured is None:
            return True
        here, there = ending(self.metrics), ending(self.cured)
        if here is None or there is None:
            return there is not None
        if "data" in self.trial.cure:
            here, there = here / guessing(self.metrics), there / guessing(self.cured)
        return there < BETTER * here


def ending(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """The last held-out loss; None where the training broke off."""
    if any(line["kind"] == "stop" and "was stopped" in line["reason"] for line in metrics):
        return None
    found: float = [line["loss"] for line in metrics if line["kind"] == "evaluation"][-1]
    return found


def guessing(metrics: Sequence[Mapping[str, Any]]) -> float:
    found: float = next(line["chance_loss"] for line in metrics if line["kind"] == "start")
    return found


def advice(remedy: str) -> set[str]:
    return {what for what, words in ADVICE.items() if re.search(words, remedy)}


def wrong_advice(cause: str, finding: Observation) -> bool:
    """Worse than useless, or useless: some of it does not help against the true cause."""
    return not advice(finding.remedy) <= HELPS[cause]


def followed(trial: Trial, remedy: str) -> Trial | None:
    """The trial as the advice would have it; None where it names no option."""
    named = re.findall(r"--(?:set )?(\w+)[ =](\S+?)[.,;)]*(?=\s|$)", remedy)
    cure: dict[str, Any] = {}
    for option, value in named:
        if option in OPTIONS:
            cure.setdefault(option, OPTIONS[option](value))
    return replace(replace(trial, cure=cure).cured(), damage=trial.damage) if cure else None


def thin(result: Result) -> dict[str, Any]:
    """What the doctor reads of a run, in six digits: with three, a trial at a threshold came out on its other side."""
    lines = [{key: _short(line[key]) for key in KEPT if key in line} for line in result.metrics]
    trial = result.trial
    return {
        "name": f"{trial.preset}: {trial.name}",
        "cause": trial.cause,
        "setup": asdict(result.setup),
        "lines": lines,
    }


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _short(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def keep(results: Sequence[Result], path: Path) -> None:
    text = "\n".join(json.dumps(thin(result), separators=(",", ":")) for result in results)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in gzip.decompress(path.read_bytes()).splitlines()]
