"""Trainings that learn to label: begun in a new run, or gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.labelling.genome.baseline import Baseline
from tapeless.labelling.signal.task import Labelled, class_weights
from tapeless.labelling.source import (
    Data,
    Source,
    learned_statistics,
    read_data,
    read_source,
    read_statistics,
    write_statistics,
)
from tapeless.models.config import Config
from tapeless.models.presets import preset
from tapeless.train import run
from tapeless.train.loop import Trainer
from tapeless.train.machine import on_its_threads
from tapeless.train.metrics import Recorder
from tapeless.train.run import Run
from tapeless.train.session import Session, make_model
from tapeless.train.session import resume as resume_session
from tapeless.train.settings import LABELLED, Request, Settings

PRESET = "sunfish"
DEFAULTS: dict[str, Any] = {
    "batch": 16, "time": 256, "steps": 1000, "lr": 1.5e-3, "schedule": "cosine", "clip": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """What a run learns from, read: the data, and of a genome its codon statistics."""

    source: Source
    data: Data
    statistics: Baseline | None


@dataclass(frozen=True)
class Labelling:
    session: Session
    opened: Opened


def start(made: Run, source: Source, settings: Settings, model: Mapping[str, Any]) -> Labelling:
    """A training in a run folder that was just made; a refusal leaves it to whoever made it to remove."""
    chosen = {name: value for name, value in DEFAULTS.items() if getattr(settings, name) is None}
    if settings.epochs is not None:
        chosen.pop("steps", None)
    settings = replace(settings, data=LABELLED, tokenizer="none", **chosen)
    settings.validate()
    settings, told = on_its_threads(settings)
    plain = preset(PRESET)
    context = max(plain.context, settings.time or 0)
    # Where memory is no matter, computing a block twice would only cost time.
    shape = {"recompute": False, "context": context, "features": source.features.width, **model}
    plain.override(**shape)  # refuses what does not fit before anything is read
    opened = _opened(source, settings.validation, None)
    every = np.concatenate([np.asarray(each.labels, np.int16) for each in opened.data.training])
    classes = opened.data.classes
    changes = {**shape, "vocab": classes, "class_weights": class_weights(every, classes)}
    request = Request(PRESET, changes, settings)
    config = plain.override(**changes)
    trainer = Trainer(make_model(request, config), _task(opened, settings, config), settings)
    opened.source.write(made.folder)
    if opened.statistics is not None:
        write_statistics(made.folder, opened.statistics)
    run.write_configuration(made, request, config)
    return Labelling(Session(made, request, trainer, Recorder(made.folder), [*opened.data.notes, *told]), opened)


def resume(folder: Path, model: dict[str, Any], settings: dict[str, Any]) -> Labelling:
    """A run that goes on; refused before anything is read where `folder` labels nothing."""
    read_source(folder)
    session = resume_session(folder, model, settings)
    return Labelling(session, _reopened(folder, session.request.settings.validation))


def resumed_task(made: Run, settings: Settings, config: Config) -> Labelled:
    return _task(_reopened(made.folder, settings.validation), settings, config)


def _reopened(folder: Path, share: float) -> Opened:
    return _opened(read_source(folder), share, read_statistics(folder))


def _opened(source: Source, share: float, statistics: Baseline | None) -> Opened:
    data = read_data(source, share)
    statistics = statistics or learned_statistics(data)
    return Opened(replace(source, feature=data.feature), data, statistics)


def _task(opened: Opened, settings: Settings, config: Config) -> Labelled:
    return Labelled(
        config, opened.data.training, opened.data.validation, time=settings.time or 1, seed=settings.seed,
        features=opened.source.features,
    )  # fmt: skip
