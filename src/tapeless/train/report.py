"""What there is to report of a training that has ended: its best weights, and what its evaluations found, also those of
processes before this one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tapeless.errors import TapelessError
from tapeless.tasks.task import Measured
from tapeless.train import checkpoint
from tapeless.train.metrics import read_metrics
from tapeless.train.run import Run, read_weights
from tapeless.train.session import Session


def take_best(session: Session) -> tuple[int, list[str]]:
    """Put the weights of the best checkpoint into the model, which learns no more: of which step they are, and messages
    about checkpoints that are damaged."""
    if checkpoint.best_step(session.run.checkpoints) == session.trainer.step:
        return session.trainer.step, []
    found, messages = session.run.checkpoint("best")
    read_weights(found, session.model)
    return found.step, messages


def measured(run: Run, step: int | None = None) -> Measured | None:
    """What an evaluation found at a step, or the last one; None where it was not recorded."""
    try:
        lines = [line for line in read_metrics(run.folder) if line["kind"] == "evaluation"]
    except TapelessError:
        return None
    at = [line for line in lines if step in (None, line["step"])]
    if not at or at[-1].get("loss") is None:
        return None
    found: dict[str, Any] = {each.name: at[-1].get(each.name) for each in fields(Measured)}
    return Measured(**found)
