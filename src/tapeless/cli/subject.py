"""What a command looks at: a preset, or a run's own model with the batch, time and backend that it is trained with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapeless.cli.common import named_path
from tapeless.errors import TapelessError
from tapeless.models.config import TRAINED_DECAY, Optimizer
from tapeless.models.presets import PRESETS, preset
from tapeless.step import DEFAULT_BACKEND, StepSpec

if TYPE_CHECKING:
    from tapeless.model import Model
    from tapeless.train.run import Run

PresetOrRun = Annotated[
    str, typer.Argument(metavar="PRESET|RUN", help="A preset (`tapeless presets` lists them) or the folder of a run.")
]
SubjectBatch = Annotated[int | None, typer.Option("--batch", "-B", help="Sequences per step. Default: the run's own.")]
SubjectTime = Annotated[
    int | None, typer.Option("--time", "-T", help="Positions per sequence. Default: the run's own.")
]


@dataclass(frozen=True)
class Subject:
    """The step of a preset, or of a run."""

    name: str
    spec: StepSpec
    run: Run | None = None

    def model(self) -> Model:
        """Return a model with the weights of the run's newest checkpoint, or with the preset's first ones."""
        model = self.spec.model()
        if self.run is not None:
            from tapeless.train.run import read_weights

            read_weights(self.run.checkpoint("newest")[0], model)
        return model


def subject(
    name: str,
    changes: Mapping[str, Any],
    *,
    batch: int | None,
    time: int | None,
    usual: tuple[int, int | None],
    backend: str | None = None,
    precision: str | None = None,
) -> Subject:
    """Find what a name means. `usual`: a preset's batch and longest sequence, unless others are given."""
    if not is_run(name):
        chosen = preset(name).override(**changes)
        context = chosen.architecture.context
        spec = StepSpec.of(
            chosen,
            batch=usual[0] if batch is None else batch,
            seq_len=min(context, usual[1] or context) if time is None else time,
            optimizer=Optimizer(chosen.optimizer, decay=TRAINED_DECAY),  # as it is trained
            backend=backend or DEFAULT_BACKEND,
            precision=precision,
        )
        return Subject(name, spec)
    from tapeless.train.run import open_run

    check_no_hub_name(name)
    opened = open_run(named_path(name))
    made = opened.spec()
    chosen = made.preset.override(**changes)
    spec = StepSpec.of(
        chosen,
        batch=made.batch if batch is None else batch,
        seq_len=made.seq_len if time is None else time,
        optimizer=chosen.optimizer if "optimizer" in changes else made.optimizer,
        backend=backend or made.backend,
        precision=made.precision.name if backend is None and precision is None else precision,
        class_weights=made.class_weights,
    )
    return Subject(name, spec, opened)


def is_run(name: str) -> bool:
    """Whether a name is a path. The name of a preset is the preset, also if a folder has it: that is ./NAME."""
    if name in PRESETS:
        return False
    if not name:
        raise TapelessError("a name is empty: give a preset or the folder of a run.")
    return os.sep in name or os.path.isdir(name)  # noqa: PTH112 (a name may be too long for a path)


def check_no_hub_name(name: str) -> None:
    """Refuse OWNER/NAME of the Hugging Face hub where there is no folder OWNER."""
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not Path(name).parent.exists() and not name.startswith("runs/"):
        raise TapelessError(
            f"there is no folder {name}: did you mean hf:{name}? `tapeless import hf:{name}` fetches it."
        )
