"""Runs side by side: the settings in which they differ, their curves and what they came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.pictures.curves import LETTERS, Curve
from tapeless.tasks.kinds import KINDS
from tapeless.tasks.task import TaskKind
from tapeless.train.run import open_run
from tapeless.train.settings import Settings
from tapeless.train.survey import DAMAGED, Overview, overview


@dataclass(frozen=True)
class Comparison:
    runs: list[Overview]
    differing: dict[str, list[Any]]  # by setting or field of the model, a value for each run; None where it has none
    curves: list[Curve]  # held-out loss over updates, with the training loss beside it
    remarks: list[str]  # what makes the figures hard to compare


def compare(folders: Sequence[Path], kinds: Sequence[TaskKind] = KINDS) -> Comparison:
    """Of two runs or more, finished or not, of any kind."""
    if len(folders) < 2:
        raise TapelessError("a comparison needs two runs at least: name another.")
    if len(folders) > len(LETTERS):
        raise TapelessError(f"{len(folders)} runs are too many to tell apart: name {len(LETTERS)} at most.")
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise TapelessError(f"{folders[number]} was named twice: name another run.")
    asked = [_asked(folder) for folder in folders]
    seen = [overview(folder, kinds) for folder in folders]
    for each in seen:
        if each.state == DAMAGED:
            raise TapelessError(f"{each.folder} cannot be compared: {each.reason}")
    names = dict.fromkeys(name for each in asked for name in each)
    differing = {name: [each.get(name) for each in asked] for name in names}
    differing = {name: values for name, values in differing.items() if any(value != values[0] for value in values)}
    return Comparison(seen, differing, [_curve(each) for each in seen], _remarks(seen, asked))


def _asked(folder: Path) -> dict[str, Any]:
    opened = open_run(folder)
    request = opened.request()
    settings = {each.name: getattr(request.settings, each.name) for each in fields(Settings)}
    return {"preset": request.preset} | opened.preset().values() | settings | {"class_weights": request.class_weights}


def _curve(seen: Overview) -> Curve:
    def points(kind: str) -> list[tuple[float, float]]:
        found = [(line["step"], line.get("loss")) for line in seen.lines if line["kind"] == kind]
        return [(float(step), float(loss)) for step, loss in found if loss is not None]

    held_out, trained = points("evaluation"), points("step")
    return Curve(str(seen.folder), held_out or trained, trained if held_out else ())


def _remarks(seen: list[Overview], asked: list[dict[str, Any]]) -> list[str]:
    found = []
    both = [(each, theirs) for each, theirs in zip(seen, asked, strict=True) if each.lines]  # those that have losses
    if len({(each.kind, theirs["loss"]) for each, theirs in both}) > 1:
        found.append("They learn different things, so their losses are not of one kind.")
    elif len({theirs["vocab"] for _, theirs in both}) > 1:
        found.append(
            "Their tokens differ, and so does what a loss per token means: `tapeless evaluate` tells bits per byte."
        )
    elif len({theirs["data"] for _, theirs in both}) > 1:
        found.append("They learn from different data: `tapeless evaluate --data` judges each by the same text.")
    for each in seen:
        if not each.lines:
            found.append(f"{each.folder} has no metrics: it was not trained here, or has not begun.")
        elif any(line["kind"] == "evaluation" and line.get("loss") is None for line in each.lines[-2:]):
            found.append(f"{each.folder} ended with a held-out loss that is not finite.")
        elif each.loss is None and each.best is None:
            found.append(f"{each.folder} was not judged yet: its curve is the loss on what it trains on.")
    return found
