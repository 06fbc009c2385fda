"""Trainings that learn to label: begun in a new run, or gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.labelling.genome.synthetic import Synthetic
from tapeless.labelling.report import farewell
from tapeless.labelling.scores import LabelReport, score
from tapeless.labelling.signal.task import Labelled, class_weights
from tapeless.labelling.source import (
    SOURCE,
    Opened,
    Source,
    make_source,
    open_source,
    read_source,
)
from tapeless.model import Model
from tapeless.models.config import Preset
from tapeless.models.presets import preset
from tapeless.tasks.kinds import KINDS
from tapeless.tasks.task import Asked, Ended, Farewell, Progress, Reader, TaskKind
from tapeless.train import session
from tapeless.train.run import Run
from tapeless.train.session import Session
from tapeless.train.settings import Request, Settings

PRESET = "sunfish"
DEMO_CHROMOSOMES = 4
DEMO_HELD_OUT = (f"chr{DEMO_CHROMOSOMES}",)


class LabellingTask(Labelled):
    """The task with what it was opened from, by which what was held out is scored at the end."""

    shows_best = False

    def __init__(
        self, opened: Opened, preset: Preset, time: int, seed: int, class_weights: tuple[float, ...] | None
    ) -> None:
        data, config = opened.data, preset.architecture
        super().__init__(config, data.training, data.validation, time=time, seed=seed, features=opened.source.features)
        self.opened, self.class_weights = opened, class_weights

    def report(self, model: Model, folder: Path, progress: Progress | None = None) -> LabelReport:
        """How well the last weights label, which `label predict` takes, too: none were chosen by what is held out."""
        return score(folder, model, self.opened, progress)

    def farewell(self, ended: Ended) -> Farewell:
        return farewell(ended, self.report(ended.model, ended.folder, ended.progress))


def _open(asked: Asked) -> tuple[LabellingTask, Preset]:
    opened = open_source(read_source(asked.folder), asked.validation)
    return LabellingTask(opened, asked.preset, asked.time, asked.seed, asked.class_weights), asked.preset


def _refuse_text(run: Path, tokenizer: str | Path | None) -> Reader:
    raise TapelessError(
        f"{run} labels signals and reads no text: label with it by `tapeless label predict {run}`, or in Python by "
        f"`.label`."
    )


KIND = TaskKind(
    "labelled",
    takes=lambda data, folder: data == "labelled" and folder is not None and (folder / SOURCE).exists(),
    open=_open,
    defaults={"batch": 16, "time": 256, "steps": 1000, "lr": 1.5e-3, "schedule": "cosine", "clip": 1.0},
    reader=_refuse_text,
)
EVERY_KIND = (KIND, *KINDS)


def start(made: Run, source: Source, settings: Settings, model: Mapping[str, Any]) -> Session:
    """A training in a run folder that was just made; a refusal leaves it to whoever made it to remove."""
    plain = preset(PRESET)
    settings = replace(settings, data=KIND.name, tokenizer="none").suited(plain.architecture, KIND)
    settings.validate()
    context = max(plain.architecture.context, settings.time or 0)
    # Where memory is no matter, computing a block twice would only cost time.
    shape = {"recompute": False, "context": context, "features": source.features.width, **model}
    wanted = plain.override(**shape)  # refuses what does not fit before anything is read
    notes: list[str] = []

    def open_new(asked: Asked) -> tuple[LabellingTask, Preset]:
        opened = open_source(source, asked.validation)
        classes = opened.data.classes
        every = np.concatenate([np.asarray(each.labels, np.int16) for each in opened.data.training])
        known = asked.preset.override(vocab=classes)
        task = LabellingTask(opened, known, asked.time, asked.seed, class_weights(every, classes))
        opened.source.write(made.folder)
        notes.extend(opened.data.notes)
        return task, known

    begun = session.begin(made, Request(PRESET, shape, settings), wanted, replace(KIND, open=open_new))
    begun.messages[:0] = notes
    return begun


def resume(folder: Path, model: Mapping[str, Any], settings: Mapping[str, Any]) -> Session:
    """A run that goes on; refused before anything is read where `folder` labels nothing."""
    read_source(folder)
    return session.resume(folder, model, settings, EVERY_KIND)


def start_demo(made: Run, bases: int, settings: Settings) -> Session:
    """A genome that is made up in the run's folder, and the exons of all but its last chromosome to be learned."""
    genome = Synthetic(settings.seed).write(made.folder / "genome", DEMO_CHROMOSOMES, bases // DEMO_CHROMOSOMES)
    source = make_source(fasta=[genome.fasta], gff=[genome.gff], held_out=DEMO_HELD_OUT)
    return start(made, source, settings, {})
