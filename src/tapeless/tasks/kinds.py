"""The kinds of task that a model which reads tokens can learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tapeless.tasks import conversations, operations, text
from tapeless.tasks.task import TaskKind

KINDS = (operations.KIND, conversations.KIND, text.KIND)  # the last one takes what none before it does


def kind_of(data: str | None, folder: Path | None = None, kinds: Sequence[TaskKind] = KINDS) -> TaskKind:
    """Of what a run's configuration names as its data. `kinds`: where more are known than those of this room."""
    return next(kind for kind in kinds if kind.takes(data or "", folder))


def usual_data(preset: str) -> str | None:
    """What a preset learns where no data are named."""
    return next((kind.name for kind in KINDS if preset in kind.presets), None)
