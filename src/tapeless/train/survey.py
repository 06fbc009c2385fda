"""What runs there are, and the figures of each that matter: read from what they have written, also while they write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError, unknown
from tapeless.files.lock import FILE as LOCK
from tapeless.files.lock import held
from tapeless.models import transformer
from tapeless.tasks.kinds import KINDS, kind_of
from tapeless.tasks.task import TaskKind
from tapeless.train import checkpoint
from tapeless.train.metrics import FILE as METRICS
from tapeless.train.metrics import came_to_its_end, read_metrics
from tapeless.train.run import CONFIGURATION, Run, open_run

FINISHED, STOPPED, RUNNING, DAMAGED, IMPORTED = "finished", "stopped", "running", "damaged", "imported"
ORDERS = ("newest", "loss")


@dataclass(frozen=True)
class Overview:
    """A run at a glance. What it does not know is None."""

    folder: Path
    state: str
    changed: float  # seconds since 1970
    reason: str = ""  # why it stopped, or what is damaged
    kind: str = ""
    preset: str = ""
    parameters: int | None = None
    step: int = 0
    loss: float | None = None  # of what is held out: the last, and the best
    best: float | None = None
    best_step: int | None = None
    accuracy: float | None = None
    train_loss: float | None = None
    tokens_per_second: float | None = None
    lines: list[dict[str, Any]] = field(default_factory=list, repr=False, compare=False)


def survey(folder: Path, by: str = ORDERS[0], kinds: Sequence[TaskKind] = KINDS) -> list[Overview]:
    """The runs in a folder and in folders inside it, the newest first, or those with the least held-out loss."""
    if by not in ORDERS:
        raise unknown("order", by, ORDERS)
    if not folder.is_dir():
        raise TapelessError(f"there is no folder {folder}: name one that holds runs, as `tapeless train` makes them.")
    found = [overview(each, kinds) for each in _folders(folder)]
    if by == "loss":
        return sorted(found, key=lambda each: (each.best is None, each.best, -each.changed))
    return sorted(found, key=lambda each: (-each.changed, str(each.folder)))


def _folders(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if {CONFIGURATION, METRICS} & {*names} or (LOCK in names and not folders):
            folders.clear()  # there are no runs inside a run
            yield Path(parent)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def overview(folder: Path, kinds: Sequence[TaskKind] = KINDS) -> Overview:
    """Of a run in any state; one that cannot be read is damaged, with what is wrong."""
    changed = max((_changed(folder / name) for name in (METRICS, CONFIGURATION)), default=0.0) or _changed(folder)
    running = held(folder)
    try:
        opened = open_run(folder)
        described = _described(opened, kinds)
        lines = read_metrics(folder) if (folder / METRICS).exists() else []
    except TapelessError as error:
        return Overview(folder, RUNNING if running else DAMAGED, changed, "it just begins" if running else str(error))
    figures = _figures(lines)
    state, reason = _state(opened, lines, running, bool(described["kind"] == IMPORTED))
    return Overview(folder, state, changed, reason, **described, **figures, lines=lines)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _described(opened: Run, kinds: Sequence[TaskKind]) -> dict[str, Any]:
    request, preset = opened.request(), opened.preset()
    data = request.settings.data
    return {
        "kind": IMPORTED if data is None else kind_of(data, opened.folder, kinds).name,
        "preset": request.preset,
        "parameters": transformer.evaluation(preset, 1, 1).parameters,
    }


def _figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    steps = [line for line in lines if line["kind"] == "step"]
    judged = [line for line in lines if line["kind"] == "evaluation"]
    last = judged[-1] if judged else {}
    finite = [line for line in judged if line.get("loss") is not None]
    best = min(finite, key=lambda line: line["loss"], default={})
    trained = steps[-1] if steps else {}
    return {
        "step": max((line["step"] for line in lines), default=0),
        "loss": last.get("loss"),
        "best": best.get("loss"),
        "best_step": best.get("step"),
        "accuracy": last.get("accuracy"),
        "train_loss": last["train_loss"] if last.get("train_loss") is not None else trained.get("loss"),
        "tokens_per_second": trained.get("tokens_per_second"),
    }


def _state(opened: Run, lines: Sequence[dict[str, Any]], running: bool, imported: bool) -> tuple[str, str]:
    if running:
        return RUNNING, ""
    if not checkpoint.steps(opened.checkpoints):
        return (DAMAGED, "it has metrics and no checkpoint") if lines else (STOPPED, "before its first checkpoint")
    if imported and not lines:
        return IMPORTED, ""
    if not lines or lines[-1]["kind"] != "stop":
        return STOPPED, "it was killed"
    return FINISHED if came_to_its_end(lines[-1]) else STOPPED, str(lines[-1].get("reason", ""))
