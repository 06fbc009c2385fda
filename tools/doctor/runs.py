"""Trainings whose trouble is known because it was put there: what the doctor is tuned on, and what it is tried on.

Each is a small training of its own, over in seconds. `cause` is what was done to it; `cure` undoes that and nothing
else, so that a cured run that does better shows the cause to be the true one. None does anything to a healthy run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import NonFiniteError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.labelling.run import KIND as LABELLED
from tapeless.labelling.signal.store import Recording
from tapeless.labelling.signal.task import Labelled, class_weights, hold_out
from tapeless.model import Model
from tapeless.models.config import OVERRIDABLE
from tapeless.models.presets import preset
from tapeless.tasks.operations import KIND as OPERATIONS
from tapeless.tasks.operations import Expressions, Operations
from tapeless.tasks.task import Task
from tapeless.train import run, session
from tapeless.train.keeping import Keeper
from tapeless.train.loop import Trainer
from tapeless.train.metrics import Recorder, read_metrics
from tapeless.train.settings import Request, Settings

LIBRARY = Path(os.__file__).parent
SIGNAL_LENGTH = 24_000


@dataclass(frozen=True)
class Trial:
    name: str
    cause: str  # the kind of finding that names it, "healthy" where there is none
    preset: str
    data: str  # "operations", "operations/shuffled", "operations/40", "text/argparse.py", "text/noise", "signal", …
    model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cure: Mapping[str, Any] = field(default_factory=dict)  # fields of the model, settings or `data` that undo it
    damage: str = ""  # what is done to the first weights

    def cured(self) -> Trial:
        fields = OVERRIDABLE
        model = {name: value for name, value in self.cure.items() if name in fields}
        settings = {name: value for name, value in self.cure.items() if name not in fields and name != "data"}
        return replace(
            self,
            model={**self.model, **model},
            settings={**self.settings, **settings},
            data=self.cure.get("data", self.data),
            cure={},
            damage="",
        )


def run_all(trials: Mapping[Path, Trial]) -> None:
    """One process a core, one thread each; the deepest first, so that none is waited for alone."""
    todo = [(folder, trial) for folder, trial in trials.items() if not folder.exists()]
    todo.sort(key=lambda each: each[1].model.get("layers", 2), reverse=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), initializer=_alone) as pool:
        for folder, _ in zip([folder for folder, _ in todo], pool.map(_run_one, todo), strict=True):
            print(f"{folder.name} is done", flush=True)


def _alone() -> None:
    cpu_kernels.set_threads(1)


def _run_one(each: tuple[Path, Trial]) -> None:
    """In a folder of another name until it is whole."""
    folder, trial = each
    unfinished = beside(folder, "unfinished")
    run_trial(trial, unfinished)
    unfinished.rename(folder)


def beside(folder: Path, what: str) -> Path:
    return folder.with_name(f"{folder.name}-{what}")


def run_trial(trial: Trial, folder: Path) -> list[dict[str, Any]]:
    """Train it in a new folder, and read what was recorded."""
    making = _open(trial, folder)
    damage(making.model, trial.damage)
    with suppress(NonFiniteError):  # the metrics say so
        making.train()
    return read_metrics(folder)


def _open(trial: Trial, folder: Path) -> session.Session:
    kind, _, which = trial.data.partition("/")
    request = Request(trial.preset, dict(trial.model), Settings(**trial.settings))
    if kind == "text":
        source = LIBRARY / which
        if which == "noise":
            source = folder.parent / f"{folder.name}.txt"
            letters = np.random.default_rng(request.settings.seed).choice(list(b"etaoin shr\n"), 120_000)
            source.write_bytes(letters.astype(np.uint8).tobytes())
        return session.start(replace(request, settings=replace(request.settings, data=str(source))), folder)
    config = preset(trial.preset).override(**trial.model)
    task: Task
    with run.making(folder) as made:
        if kind == "operations":
            settings = replace(request.settings, data=OPERATIONS.name).suited(config.architecture)
            task = _operations(Operations(config.architecture, settings.seed), which)
        else:
            settings = replace(request.settings, data=LABELLED.name, tokenizer="none").suited(
                config.architecture, LABELLED
            )
            recordings = [_signal(which, settings.seed)]
            config = config.override(recompute=False)
            request = replace(request, class_weights=class_weights(recordings[0].labels, 2))
            training, held_out = hold_out(recordings, 0.2)
            task = Labelled(config.architecture, training, held_out, time=settings.time or 1, seed=settings.seed)
        request = replace(request, settings=settings)
        trainer = Trainer(
            session.make_model(request, config, OPERATIONS if kind == "operations" else LABELLED), task, settings
        )
        run.write_configuration(made, request, config)
        keeper = Keeper(made, trainer, Recorder(folder), session.identity(request, config, task))
        return session.Session(made, request, keeper, [])


def _operations(task: Operations, which: str) -> Operations:
    """As they are, with answers that belong to other expressions, or the first few alone."""
    training = task.training
    if which == "shuffled":
        rng = np.random.default_rng(task.seed + 100)
        training = Expressions(training.tokens, rng.permutation(training.answers))
        task.validation = Expressions(task.validation.tokens, rng.permutation(task.validation.answers))
    elif which == "one answer":  # nine of ten expressions answer with 9, the others with anything
        training, task.validation = (_mostly_nine(each, task.seed) for each in (training, task.validation))
    elif which:
        training = Expressions(training.tokens[: int(which)], training.answers[: int(which)])
    task.training = training
    return task


def _mostly_nine(examples: Expressions, seed: int) -> Expressions:
    rng = np.random.default_rng(seed + 100)
    chosen = rng.random(len(examples)) < 0.9
    return Expressions(examples.tokens, np.where(chosen, examples.answers.max(), rng.permutation(examples.answers)))


def _signal(which: str, seed: int) -> Recording:
    """Noise in which stretches hum; the hum is what is to be labelled. "noise": the labels are from another signal."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(SIGNAL_LENGTH, np.int64)
    where = 0
    while where < SIGNAL_LENGTH:
        where += int(rng.integers(100, 500))
        length = int(rng.integers(40, 160))
        labels[where : where + length] = 1
        where += length
    hum = np.sin(2 * np.pi * np.arange(SIGNAL_LENGTH) / 6)
    signal = rng.normal(size=SIGNAL_LENGTH) + 1.5 * hum * labels
    if which == "noise":
        labels = np.roll(labels[::-1], SIGNAL_LENGTH // 3)
        signal = rng.normal(size=SIGNAL_LENGTH)
    return Recording(signal, labels)


def damage(model: Model, how: str) -> None:
    """What is done to the first weights, before anything is trained."""
    for name, weight in model.params.items():
        if how == "dead" and name.endswith("mlp.up.bias"):
            weight[...] = -20
        elif how == "saturated" and name.endswith(("mlp.up.weight", "mlp.down.weight", "attn.proj.weight")):
            weight *= 20
        elif how == "huge" and name.endswith(("mlp.down.weight", "attn.proj.weight", "mlp.up.weight")):
            weight *= 1000
