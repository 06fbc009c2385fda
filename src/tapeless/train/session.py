"""A training put together from what was asked for, new or resumed: run folder, data, model, trainer, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.model import Model
from tapeless.models.config import Config
from tapeless.models.presets import preset
from tapeless.train import checkpoint, run
from tapeless.train.data.prepare import prepare
from tapeless.train.data.tokens import holds_tokens, open_data
from tapeless.train.loop import Evaluated, Event, Finished, Logged, SaveDue, Spiked, Trainer, train
from tapeless.train.metrics import Recorder
from tapeless.train.operations import LENGTH, Operations
from tapeless.train.run import Run, read_weights
from tapeless.train.settings import LABELLED, OPERATIONS, Request
from tapeless.train.task import Task
from tapeless.train.text import Text

ENDED = object()
Progress = Callable[[str, int, int], None]  # what, done, of how much
# A resumed run that changed one of these would not be the run it was.
FIXED = ("data", "tokenizer", "validation", "batch", "time", "accumulate", "seed", "backend", "dtype")


@dataclass(frozen=True)
class Saved:
    step: int
    path: Path
    best: bool


@dataclass(frozen=True)
class NotSaved:
    """The training is still in memory: whoever walks may make room and call `save` again, go on, or leave."""

    message: str
    best: bool


@dataclass
class Session:
    run: Run
    request: Request
    trainer: Trainer
    recorder: Recorder
    messages: list[str]  # what the user should know about how it started
    last_saved: int | None = None  # the step of the newest checkpoint

    @property
    def model(self) -> Model:
        return self.trainer.model

    def walk(self, stopping: Callable[[], str | None]) -> Iterator[Event | Saved | NotSaved]:
        """Train, record and save. When `stopping` gives a reason, it is saved after the batch at hand, and ends."""
        events = train(self.trainer)
        while (event := self._next(events)) is not ENDED:
            if event is None:
                reason = stopping()
                if reason:
                    yield from self._saved(best=False)
                    self._record(Finished(reason))
                    yield Finished(reason)
                    return
            elif isinstance(event, SaveDue):
                yield from self._saved(event.best)
            else:
                self._record(event)
                yield event

    def _next(self, events: Iterator[Event | None]) -> Any:
        """The next event. NaN and infinity end the training; the weights, which have seen nothing of it, are kept."""
        try:
            return next(events, ENDED)
        except NonFiniteError as error:
            self._record(Finished(str(error)))
            try:
                self.save()
            except TapelessError as unsaved:
                raise NonFiniteError(f"{error} {unsaved}") from None
            raise

    def save(self, best: bool = False) -> Saved:
        trainer = self.trainer
        with trainer.phases("save"):
            path = checkpoint.save(
                self.run.checkpoints, trainer.step, trainer.tensors(), trainer.state(),
                keep=trainer.settings.keep, best=best,
            )  # fmt: skip
        self.last_saved = trainer.step
        return Saved(trainer.step, path, best)

    def _saved(self, best: bool) -> Iterator[Saved | NotSaved]:
        try:
            yield self.save(best)
        except TapelessError as error:
            yield NotSaved(str(error), best)

    def _record(self, event: Event) -> None:
        if isinstance(event, Logged):
            values = asdict(event.step) | {
                "gradient_norms": event.gradient_norms,
                "update_ratios": event.update_ratios,
                "tokens_per_second": event.tokens_per_second,
                "phases": event.phases,
            }
            self.recorder.record("step", values.pop("number"), **values)
        elif isinstance(event, Evaluated):
            found = asdict(event)
            self.recorder.record("evaluation", found.pop("step"), **found.pop("measured"), **found)
        elif isinstance(event, Spiked):
            self.recorder.record("spike", event.step, message=event.message)
        elif isinstance(event, Finished):
            self.recorder.record("stop", self.trainer.step, reason=event.reason)


def start(request: Request, folder: Path, *, base: Run | None = None, progress: Progress | None = None) -> Session:
    """A new run. `base` is a run whose best weights it starts from."""
    messages: list[str] = []
    if base is not None:
        request, found, messages = _based_on(request, base)
    config = preset(request.preset).override(**request.model)
    _check_reads_tokens(config)
    request = replace(request, settings=replace(request.settings, data=request.settings.data or _usual_data(request)))
    settings = request.settings.suited(config)
    request = replace(request, settings=settings)
    with run.making(folder) as made:
        task, config = _task(request, config, made, base, progress)
        settings = replace(settings, tokenizer=_tokenizer_kind(task))
        request = replace(request, model={**request.model, "vocab": config.vocab}, settings=settings)
        trainer = Trainer(make_model(request, config), task, settings)
        if base is not None:
            read_weights(found, trainer.model)
        run.write_configuration(made, request, config)
        recorder = Recorder(made.folder, tensorboard=settings.tensorboard)
    return Session(made, request, trainer, recorder, messages)


def resume(folder: Path, model: Mapping[str, Any], settings: Mapping[str, Any]) -> Session:
    """Go on where the newest whole checkpoint stands, with what may be changed in the middle of a run."""
    opened = run.open_run(folder)
    before = opened.request()
    request = before.override({}, settings)
    for name in (*model, *(name for name in settings if name in FIXED)):
        if name in model or getattr(before.settings, name) != getattr(request.settings, name):
            raise TapelessError(
                f"{name} cannot be changed in the middle of a run: start a new one with --from {folder}."
            )
    found, messages = opened.checkpoint("newest")
    if "data" not in found.state:
        raise TapelessError(f"{folder} holds weights without a training to go on with: start one with --from {folder}.")
    config = opened.config()
    for name in ("data", "batch") if request.settings.data == OPERATIONS else ("data", "batch", "time"):
        if getattr(request.settings, name) is None:
            raise TapelessError(f"{folder / run.CONFIGURATION} no longer says what {name} is: put it back as it was.")
    task, _ = _task(request, config, opened, None, None)
    trainer = Trainer(make_model(request, config), task, request.settings)
    trainer.restore(found)
    if trainer.step >= trainer.steps and not trainer.added:
        raise TapelessError(f"{folder} is done: all {trainer.steps:,} updates were made; give more with --steps.")
    run.write_configuration(opened, request, config)
    recorder = Recorder(opened.folder, tensorboard=request.settings.tensorboard)
    recorder.cut_after(trainer.step)
    return Session(opened, request, trainer, recorder, messages, last_saved=found.step)


def _usual_data(request: Request) -> str:
    if request.preset == "ops-102k":
        return OPERATIONS
    raise TapelessError(
        f"{request.preset} learns from text, and none was named: give a file, a folder or tokens with --data, "
        f"or --data stdlib for the source of Python itself."
    )


def _check_reads_tokens(config: Config) -> None:
    if config.features:
        raise TapelessError(
            f"{config.name} reads features, and train knows text and the operations task: choose a preset that reads "
            f"tokens, such as ops-102k."
        )


def _based_on(request: Request, base: Run) -> tuple[Request, checkpoint.Checkpoint, list[str]]:
    """The model is the base's; its width or depth cannot change, as its weights must fit."""
    for name in request.model:
        if name not in ("optimizer", "recompute", "chunk"):
            raise TapelessError(f"{name} belongs to the model that {base.folder} brings: leave it out.")
    found, messages = base.checkpoint("best")
    theirs = base.request()
    model = {**theirs.model, **request.model}
    return replace(request, preset=theirs.preset, model=model), found, messages


def _task(
    request: Request, config: Config, made: Run, base: Run | None, progress: Progress | None
) -> tuple[Task, Config]:
    settings = request.settings
    if settings.data == OPERATIONS:
        return Operations(config, settings.seed), config
    if settings.data == LABELLED and (made.folder / "source.json").exists():
        from tapeless.train.labelled import resumed_task  # which builds on sessions itself

        return resumed_task(made, settings, config), config
    assert settings.data is not None  # `suited` has seen to both
    assert settings.time is not None
    if config.readout == "last" or not config.causal:
        why = "answers once per sequence" if config.readout == "last" else "sees the words that it should predict"
        raise TapelessError(f"{request.preset} {why}: to learn text choose a GPT, such as gpt2-4x256.")
    vocab_asked = request.model.get("vocab")
    source = Path(settings.data)
    if made.data.exists():
        data = open_data(made.data)
    elif holds_tokens(source):
        data = open_data(source, validation=settings.validation)
    else:
        spec = settings.tokenizer
        inherited = base.tokenizer_spec() if base else None
        if inherited is not None:
            spec, vocab_asked = str(inherited), None
        prepare(
            settings.data, made.data, tokenizer=spec, vocab=vocab_asked if spec == "bpe" else None,
            validation=settings.validation, seed=settings.seed, progress=progress,
        )  # fmt: skip
        data = open_data(made.data)
    keeps = base is not None or "vocab" in request.model or data.tokenizer is None
    config = config if keeps else config.override(vocab=data.vocab)
    if data.vocab > config.vocab:
        raise TapelessError(
            f"the data has a vocabulary of {data.vocab:,} and the model one of {config.vocab:,}: "
            f"leave --vocab out, or give at least {data.vocab}."
        )
    if data.tokenizer is not None:
        data.tokenizer.save(made.folder)
    return Text(data, settings.time, settings.seed), config


def _tokenizer_kind(task: Task) -> str:
    """What the run's configuration says: the tokenizer itself lies beside it."""
    tokenizer = task.tokenizer
    return "none" if tokenizer is None else "bytes" if tokenizer.name == "bytes" else "tokenizer.json"


def make_model(request: Request, config: Config) -> Model:
    settings = request.settings
    time = LENGTH if settings.data == OPERATIONS else settings.time
    return Model(
        config, batch=settings.batch or 1, time=time, backend=settings.backend, dtype=settings.dtype,
        optimizer=settings.optimizer(config.optimizer), seed=settings.seed,
    )  # fmt: skip
