"""A training put together from what was asked for, new or resumed: run folder, data, model, trainer, records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models.config import Optimizer, Preset
from tapeless.ops.contract import Array
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.kinds import KINDS, kind_of
from tapeless.tasks.task import Asked, Progress, Task, TaskKind
from tapeless.train import checkpoint, run
from tapeless.train.base import as_held, write_base
from tapeless.train.history.recording import StepRecording
from tapeless.train.keeping import Keeper
from tapeless.train.loop import Callback, Finished, Trainer, train
from tapeless.train.machine import offered, on_its_machine
from tapeless.train.metrics import Recorder
from tapeless.train.resolve import resolve, sequence_length
from tapeless.train.run import NumberedFolder, Run
from tapeless.train.settings import Request

# A resumed run that changed one of these would not be the run it was.
FIXED = (
    "data",
    "field",
    "column",
    "encoding",
    "drop_duplicates",
    "tokenizer",
    "validation",
    "batch",
    "time",
    "accumulate",
    "seed",
    "backend",
    "precision",
)


@dataclass
class Session:
    run: Run
    request: Request
    keeper: Keeper
    messages: list[str]  # what the user should know about how it started

    @property
    def trainer(self) -> Trainer:
        return self.keeper.trainer

    @property
    def model(self) -> Model:
        return self.trainer.model

    @property
    def last_saved(self) -> int | None:
        """The step of the newest checkpoint."""
        return self.keeper.last_saved

    def train(self, *callbacks: Callback, stopping: Callable[[], str | None] = lambda: None) -> Finished:
        """Train to the end, or until `stopping` gives a reason: it is kept in the run's folder, and the callbacks are
        told what happens. Then another process may train this run."""
        try:
            if self.trainer.step == 0 and not self.trainer.added:
                self.keeper.begin()
            return train(self.trainer, self.keeper, *callbacks, stopping=stopping)
        finally:
            self.run.release()


def start(
    request: Request, folder: Path | NumberedFolder, *, base: Run | None = None, progress: Progress | None = None
) -> Session:
    """A new run. `base` is a run whose best weights it starts from."""
    resolved = resolve(request, base)
    with run.making(folder) as made:
        session = begin(
            made,
            resolved.request,
            resolved.preset,
            resolved.kind,
            weights=resolved.weights,
            inherited=base.tokenizer_spec() if base else None,
            progress=progress,
        )
    session.messages[:0] = resolved.messages
    return session


def begin(
    made: Run,
    request: Request,
    preset: Preset,
    kind: TaskKind,
    *,
    weights: Mapping[str, Array] | None = None,
    inherited: str | Path | None = None,
    progress: Progress | None = None,
) -> Session:
    """A training in a run folder that was just made; a refusal leaves it to whoever made it to remove. `weights` and
    the tokenizer that is `inherited` are those of a run that it starts from."""
    settings, messages = on_its_machine(request.settings, preset.optimizer, new=True)
    request = replace(request, settings=settings)
    asked = _asked(request, preset, kind, made, inherited, progress)
    task, preset = kind.open(asked)
    _check_read(request, kind, asked.read)
    task.keep(made.folder)
    settings = replace(settings, tokenizer=_tokenizer_kind(task))
    request = replace(
        request,
        model={**request.model, "vocab": preset.architecture.vocab},
        settings=settings,
        class_weights=task.class_weights or request.class_weights,
    )
    model = make_model(request, preset, kind)
    _check_acts(request, model)
    trainer = Trainer(model, task, settings)
    recorder = Recorder(made.folder, tensorboard=settings.tensorboard)
    trainer.recording = _recording(made, trainer)
    messages += offered(settings, trainer.model)
    keeper = Keeper(made, trainer, recorder, identity(request, preset, task))
    if weights is not None:
        _take(weights, trainer.model)
    trainer.base = _keep_base(made, trainer.model, weights or {})
    if weights is not None:
        keeper.save()  # a run that is resumed before its first checkpoint has its seed alone to start from
    run.write_configuration(made, request, preset)
    return Session(made, request, keeper, [*messages, *_lock_messages(made)])


def _take(weights: Mapping[str, Array], model: Model) -> None:
    """Those of a run that it starts from; adapters begin anew."""
    wanted = {each.name: each.shape for each in model.program.weights if not each.adapter}
    if {name: array.shape for name, array in weights.items()} != wanted:
        raise TapelessError("the weights that it is to start from do not belong to this model: names or shapes differ.")
    for name, array in weights.items():
        model.write(name, array)


def _keep_base(made: Run, model: Model, weights: Mapping[str, Array]) -> str | None:
    """What is not trained, as it was before this training's precision has rounded it; but where the type of frozen
    matrices was chosen, in that: what is trained on top of them has seen no other."""
    frozen = [weight for weight in model.program.weights if weight.kind == "frozen"]
    if not frozen:
        return None
    base = {each.name: weights[each.name] if each.name in weights else model.read(each.name) for each in frozen}
    return write_base(made.folder, as_held(base, frozen, model.preset.frozen_precision))


def _recording(run: Run, trainer: Trainer) -> StepRecording | None:
    settings = trainer.settings
    whole = settings.whole_steps()
    if whole and whole[-1] > trainer.steps:
        raise TapelessError(
            f"record_tensors names update {whole[-1]:,}, and this training makes {trainer.steps:,}: name earlier ones."
        )
    return None if settings.record == 0 else StepRecording(run.folder, trainer.model, settings.record, whole=whole)


def resume(
    folder: Path, model: Mapping[str, Any], settings: Mapping[str, Any], kinds: Sequence[TaskKind] = KINDS
) -> Session:
    """Go on where the newest whole checkpoint stands, with what may be changed in the middle of a run. `kinds`: of
    which its task is one."""
    opened = run.open_run(folder, locked=True)
    try:
        return _resumed(opened, model, settings, kinds)
    except BaseException:
        opened.release()
        raise


def _resumed(opened: Run, model: Mapping[str, Any], settings: Mapping[str, Any], kinds: Sequence[TaskKind]) -> Session:
    folder, before = opened.folder, opened.request()
    preset = opened.preset()
    if settings.get("precision") == opened.spec().precision.name:  # which it may have without saying so
        settings = {name: value for name, value in settings.items() if name != "precision"}
    request = before.override({}, settings)
    mine, asked = preset.values(), preset.override(**model).values()
    changed = [name for name in model if mine[name] != asked[name]]
    changed += [name for name in FIXED if getattr(before.settings, name) != getattr(request.settings, name)]
    if changed:
        raise TapelessError(
            f"{changed[0]} cannot be changed in the middle of a run: start a new one with --init-from {folder}."
        )
    threaded, told = on_its_machine(request.settings, preset.optimizer)
    request = replace(request, settings=threaded)
    found, messages = opened.newest()
    messages += told
    if found is None:
        messages.append(f"{folder} was ended before its first checkpoint: it starts from the beginning.")
    elif "data" not in found.state:
        raise TapelessError(
            f"{folder} holds weights and no training to go on with: start one with --init-from {folder}."
        )
    kind = kind_of(request.settings.data, folder, kinds)
    for name in ("data", "batch") if kind.length is not None else ("data", "batch", "time"):
        if getattr(request.settings, name) is None:
            raise TapelessError(f"{folder / run.CONFIGURATION} no longer says what {name} is: put it back as it was.")
    task, _ = kind.open(_asked(request, preset, kind, opened, None, None))
    if found is not None:
        _check_same(found, folder, identity(request, preset, task))
    trainer = Trainer(make_model(request, preset, kind), task, request.settings)
    _check_acts(request, trainer.model)
    if found is not None:
        trainer.restore(found)
    else:
        trainer.base = _keep_base(opened, trainer.model, {})
    if trainer.step > trainer.steps:
        raise TapelessError(
            f"{folder} has made {trainer.step:,} updates, more than the {trainer.steps:,} that it is given now: give "
            f"at least as many with --steps."
        )
    finished = trainer.step == trainer.steps or trainer.out_of_patience
    if not finished:
        run.write_configuration(opened, request, preset)
    recorder = Recorder(opened.folder, tensorboard=request.settings.tensorboard)
    begun = trainer.step > 0 or trainer.added > 0
    messages += [*_lock_messages(opened), *recorder.cut_after(trainer.step if begun else -1)]
    trainer.recording = _recording(opened, trainer)
    if trainer.recording:
        messages += trainer.recording.cut_after(trainer.step)
    complete = finished and recorder.ended(trainer.step)
    if finished:
        checkpoint.tidy(opened.checkpoints, trainer.step, request.settings.keep)
        more = "--patience" if trainer.step < trainer.steps else "--steps"
        how = "is complete" if complete else "was ended before its report"
        messages.append(f"{folder} {how}: {trainer.end()}; go on by giving more with {more}.")
    keeper = Keeper(opened, trainer, recorder, identity(request, preset, task), complete=complete)
    if found is not None:
        keeper.resumed()
    return Session(opened, request, keeper, messages)


def open_task(opened: Run, kind: TaskKind) -> Task:
    """What a run learns, to be looked at."""
    return kind.open(_asked(opened.request(), opened.preset(), kind, opened, None, None))[0]


def identity(request: Request, preset: Preset, task: Task) -> dict[str, Any]:
    """What makes a run the run it is, for its checkpoints: its configuration lies beside them, where it can be edited.
    Its data may move, and must stay what they were."""
    found = {name: getattr(request.settings, name) for name in FIXED if name != "data"}
    found |= preset.values() | {"class_weights": request.class_weights}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}  # as in JSON
    return listed | task.identity()


def _check_same(found: checkpoint.Checkpoint, folder: Path, identity: Mapping[str, Any]) -> None:
    recorded = found.state.get("run")
    if not isinstance(recorded, dict) or recorded.keys() != identity.keys():
        raise TapelessError(f"the state in {found.path} is damaged: it does not say what run it is of; take another.")
    for name, value in identity.items():
        if recorded[name] != value:
            found_out = "what data names has the SHA-256" if name == "data" else f"{name} is"
            said = f"no {name} is given" if value is None else f"{found_out} {value!r}"
            trained = f"without {name}" if recorded[name] is None else f"with {recorded[name]!r}"
            raise TapelessError(
                f"{said} by {folder / run.CONFIGURATION}, and this run was trained {trained}: put that back, or start "
                f"a new run with --init-from {folder}."
            )


def _lock_messages(opened: Run) -> list[str]:
    if opened.lock is None or opened.lock.kept:
        return []
    return [f"the file system of {opened.folder} knows no locks: see to it that nothing else trains this run."]


def _asked(
    request: Request, preset: Preset, kind: TaskKind, made: Run, inherited: str | Path | None, progress: Progress | None
) -> Asked:
    settings = request.settings
    return Asked(
        preset,
        data=settings.data or kind.name,
        tokenizer=settings.tokenizer,
        validation=settings.validation,
        time=sequence_length(kind, settings),
        seed=settings.seed,
        folder=made.folder,
        vocab=request.model.get("vocab"),
        inherited=inherited,
        progress=progress,
        class_weights=request.class_weights,
        reading=settings.reading(),
    )


def _check_read(request: Request, kind: TaskKind, read: Collection[str]) -> None:
    """Refuse a setting about data that the task has not looked at. What the data are, has chosen the task."""
    about_reading = {each.name for each in fields(Reading)}
    known = {each.name for each in fields(Asked)} | about_reading
    looked_at = {"data", *read, *(about_reading if "reading" in read else ())}
    for name in sorted(request.given & (known - looked_at)):
        raise TapelessError(f"{name} has no effect on {kind.name} as given here: leave it out.")


def _check_acts(request: Request, model: Model) -> None:
    """Refuse a setting of the optimizer that no call of the update has."""
    calls = model.program.phase("update")
    for each in fields(Optimizer):
        asked = getattr(request.settings, each.name, None)
        if each.name in request.given and not any(dict(call.scalars).get(each.name) == asked for call in calls):
            raise TapelessError(f"{each.name} has no effect with {model.preset.optimizer}: leave it out.")


def _tokenizer_kind(task: Task) -> str:
    """What the run's configuration says: the tokenizer itself lies beside it."""
    tokenizer = task.tokenizer
    return "none" if tokenizer is None else "bytes" if tokenizer.name == "bytes" else "tokenizer.json"


def make_model(request: Request, preset: Preset, kind: TaskKind) -> Model:
    settings = request.settings
    if preset.layout.lean and settings.accumulate > 1:
        raise TapelessError(
            f"accumulate={settings.accumulate} adds up gradients, for which a lean model has no room from batch to "
            f"batch: say lean=False, or leave accumulate out."
        )
    return Model(
        preset,
        batch=settings.batch or 1,
        time=sequence_length(kind, settings),
        backend=settings.backend,
        precision=settings.precision,
        optimizer=settings.optimizer(preset.optimizer),
        class_weights=request.class_weights,
        seed=settings.seed,
    )
