"""What a command looks at: a preset, or a run's own model with the batch, time and backend that it is trained with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tapeless.backends.backend import planner_named, precision_for
from tapeless.backends.planning import Wanted
from tapeless.cli.paths import named_path
from tapeless.errors import TapelessError
from tapeless.inputs import check_shape
from tapeless.model import DEFAULT_BACKEND, Model
from tapeless.models.config import Optimizer, Preset
from tapeless.models.presets import PRESETS, preset
from tapeless.program.arena import Plan
from tapeless.program.precision import Precision
from tapeless.train.run import Run, open_run, read_weights

PresetOrRun = Annotated[
    str,
    typer.Argument(metavar="PRESET|RUN", help="A preset (`tapeless presets` lists them), or the folder of a run."),
]
SubjectBatch = Annotated[int | None, typer.Option("--batch", "-B", help="Sequences per step; of a run, its own.")]
SubjectTime = Annotated[int | None, typer.Option("--time", "-T", help="Positions per sequence; of a run, its own.")]


@dataclass(frozen=True)
class Subject:
    name: str
    preset: Preset
    batch: int
    time: int
    optimizer: Optimizer
    backend: str
    precision: Precision
    class_weights: tuple[float, ...] | None = None
    run: Run | None = None

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            self.preset,
            self.batch,
            self.time,
            self.optimizer,
            self.precision,
            planner_named(self.backend),
            self.class_weights is not None,
        )

    def plan(self) -> Plan:
        return self.wanted.plans()[0]

    def model(self) -> Model:
        """With the weights of a run's newest checkpoint, or a preset's first ones."""
        model = Model(
            self.preset,
            batch=self.batch,
            time=self.time,
            optimizer=self.optimizer,
            backend=self.backend,
            precision=self.precision.name,
            class_weights=self.class_weights,
        )
        if self.run is not None:
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
    """`usual`: a preset's batch, and its longest time, where nobody says."""
    if not is_run(name):
        chosen = preset(name).override(**changes)
        context, kind = chosen.architecture.context, planner_named(backend or DEFAULT_BACKEND)
        found = Subject(
            name,
            chosen,
            usual[0] if batch is None else batch,
            min(context, usual[1] or context) if time is None else time,
            Optimizer(chosen.optimizer),
            kind.name,
            precision_for(kind, precision, chosen.frozen_precision),
        )
    else:
        opened = open_run(named_path(name))
        made = opened.recipe()
        kind = planner_named(backend or made.backend)
        chosen = made.preset.override(**changes)
        named = made.precision.name if backend is None and precision is None else precision
        found = Subject(
            name,
            chosen,
            made.batch if batch is None else batch,
            made.time if time is None else time,
            made.optimizer if "optimizer" not in changes else Optimizer(chosen.optimizer),
            kind.name,
            precision_for(kind, named, chosen.frozen_precision),
            made.class_weights,
            opened,
        )
    check_shape(found.preset.architecture, found.batch, found.time)
    return found


def is_run(name: str) -> bool:
    """A preset's name is the preset, also where a folder is called so: that is ./NAME."""
    if name in PRESETS:
        return False
    if not name:
        raise TapelessError("a name is empty: give a preset or the folder of a run.")
    return os.sep in name or os.path.isdir(name)  # noqa: PTH112 (a name may be too long for a path)
