"""What a run was asked for: a preset or a TOML file, then what the command line changes, resolved once and kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError, unknown
from tapeless.files.plain import read_toml
from tapeless.inputs import check_seed
from tapeless.models.config import OVERRIDABLE, Architecture, Optimizer, Preset, check_fields, check_size
from tapeless.models.presets import PRESETS, preset
from tapeless.tasks.data.reading import READING_HELP, Reading
from tapeless.tasks.kinds import KINDS, kind_of
from tapeless.tasks.task import TaskKind
from tapeless.train.schedules import Schedule

FORMAT = 1  # of a run's configuration
BESIDES = ("format", "preset", "model", "loss")  # what a configuration has besides settings
MOST_EPOCHS = 1_000_000
TRAINED_IN = ("float32", "float64", "bfloat16")
HIGHEST_LR = 1e6
MOST_STEPS = 64  # whose tensors are kept


SIZES = ["batch", "time", "accumulate", "steps", "patience", "every", "eval_every", "eval_batches"]
SIZES += ["log_every", "save_every", "keep"]
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "record": (lambda value: value >= 0, "a number of updates, or 0 for no record"),
    "epochs": (lambda value: 0 < value <= MOST_EPOCHS, f"above 0 and at most {MOST_EPOCHS:,}"),
    "validation": (lambda value: 0 < value < 1, "a share between 0 and 1"),
    "clip": (lambda value: 0 <= value < inf, "above 0, or 0 for no clipping"),
    # A higher rate only destroys the weights.
    "lr": (lambda value: 0 < value <= HIGHEST_LR, f"a finite number above 0 and at most {HIGHEST_LR:,.0f}"),
}


def option(default: Any, panel: str, text: str) -> Any:
    return field(default=default, metadata={"panel": panel, "help": text})


def key(default: Any, text: str) -> Any:
    """What is set seldom, and so by `--set` or in a file alone."""
    return field(default=default, metadata={"panel": None, "help": text})


@dataclass(frozen=True)
class Settings:
    """One field, one key of the TOML file and of `--set`, and for the usual ones an option of `tapeless train`. None
    means: what suits the data."""

    data: str | None = option(
        None, "Data", "A text file, folder or glob, `stdlib`, conversations (.jsonl), tokens, or `operations`."
    )
    field: str | None = option(None, "Data", READING_HELP["field"])
    column: str | None = option(None, "Data", READING_HELP["column"])
    encoding: str | None = key(None, READING_HELP["encoding"])
    drop_duplicates: bool = key(False, READING_HELP["drop_duplicates"])
    tokenizer: str = option("bytes", "Data", "Of text: `bytes`, `bpe` (learned from it), or a tokenizer.json.")
    validation: float = option(0.1, "Data", "Fraction of the documents that becomes validation data.")
    batch: int | None = option(None, "Data", "Sequences per batch.")
    time: int | None = option(None, "Data", "Positions per sequence.")
    accumulate: int = option(1, "Data", "Batches whose gradients are added up for one step of the optimizer.")
    steps: int | None = option(None, "Length", "Steps of the optimizer.")
    epochs: float | None = option(None, "Length", "Passes over the data, instead of steps.")
    patience: int | None = option(None, "Length", "Stop early, after so many evaluations without a better one.")
    lr: float | None = option(None, "Learning rate", "The highest learning rate.")
    schedule: str | None = option(None, "Learning rate", "How it falls: constant, step, exponential, cosine or linear.")
    warmup: int | None = option(None, "Learning rate", "Steps over which it rises. Default: a twentieth, at most 100.")
    floor: float = key(0.1, "cosine and linear: where they end, as a share of lr.")
    every: int = key(1000, "step and exponential: updates until it is multiplied by `rate`.")
    rate: float = key(0.5, "step and exponential: what it is multiplied by.")
    clip: float | None = option(None, "Optimizer", "Largest norm of the whole gradient; 0 for no clipping.")
    momentum: float | None = key(None, "For momentum, by default 0.9, and muon, 0.95.")
    beta1: float = key(0.9, "For adam and adamw; of muon, for what is no matrix.")
    beta2: float | None = key(None, "For the same.")
    eps: float = key(1e-8, "For the same.")
    decay: float | None = option(None, "Optimizer", "Weight decay of adamw and muon, on matrices.")
    eval_every: int | None = option(None, "Reports", "Steps between evaluations. Default: an epoch, or a tenth of all.")
    eval_batches: int = key(20, "Batches of an evaluation, at most.")
    log_every: int = key(10, "Updates between lines of metrics.")
    sample: str | None = option(None, "Reports", "A prompt to continue at every evaluation.")
    record: int | None = option(
        None,
        "Reports",
        "Steps between two that are recorded call by call; 0 for none. Default: as many as cost at most 1.5 %.",
    )
    record_tensors: str | None = key(
        None, "Updates whose tensors are all kept, such as 1,100,1000: at most 1 GiB a run."
    )
    tensorboard: bool = key(False, "Write event files for TensorBoard, too.")
    save_every: int | None = option(None, "Checkpoints", "Steps between checkpoints. Default: as between evaluations.")
    keep: int = key(3, "How many of the last checkpoints stay; the best always does.")
    seed: int = option(0, "Machine", "Seed of weights and data.")
    backend: str = option("cpu", "Machine", "cpu, cuda or reference; auto takes a GPU if there is one.")
    precision: str | None = option(
        None, "Machine", "float32, float64 or bfloat16. Default: the one the backend prefers."
    )
    threads: int | None = option(None, "Machine", "Threads of the cpu backend. Default: one per core.")
    products: str | None = key(None, "Of the cpu backend: mkl or own; what is faster here.")

    def reading(self) -> Reading:
        return Reading(self.field, self.column, self.encoding, self.drop_duplicates)

    def validate(self) -> None:
        _check_types(self)
        self.reading().validate()
        check_seed(self.seed)
        if self.steps is not None and self.epochs is not None:
            raise TapelessError(f"steps={self.steps} and epochs={self.epochs:g} were both given: choose one.")
        for name in SIZES:
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if self.precision is not None and self.precision not in TRAINED_IN:
            raise unknown("precision", self.precision, TRAINED_IN)
        for name, (fits, wanted) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise TapelessError(f"{name} must be {wanted}, not {value!r}.")
        if self.whole_steps() and self.record == 0:
            raise TapelessError("record_tensors would have no effect, as record=0 keeps no record: leave one out.")
        self.learning_rate(self.steps or max(self.warmup or 0, 0) + 1)

    def whole_steps(self) -> tuple[int, ...]:
        """The updates whose tensors are kept, in order."""
        said = [each.strip() for each in self.record_tensors.split(",")] if self.record_tensors is not None else []
        if not all(each.isascii() and each.isdigit() and len(each) < 16 and int(each) > 0 for each in said):
            raise TapelessError(
                f"record_tensors must be updates, counted from 1, such as 1,100,1000, not {self.record_tensors!r}."
            )
        found = sorted({int(each) for each in said})
        if len(found) > MOST_STEPS:
            raise TapelessError(
                f"record_tensors names {len(found):,} updates, and {MOST_STEPS} is the most: name fewer."
            )
        return tuple(found)

    def suited(self, config: Architecture, kind: TaskKind | None = None) -> Settings:
        """With every None that has a value for this kind of task filled in; without one, for what `data` names."""
        defaults = (kind or kind_of(self.data)).defaults
        missing: dict[str, Any] = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        if self.epochs is not None:
            missing.pop("steps", None)
        if self.steps is not None:
            missing.pop("epochs", None)
        if "time" in missing:
            missing["time"] = min(config.context, missing["time"])
        return replace(self, **missing)

    def learning_rate(self, steps: int) -> Schedule:
        return Schedule(
            self.schedule or "constant",
            lr=1.0 if self.lr is None else self.lr,
            steps=steps,
            warmup=min(100, steps // 20) if self.warmup is None else self.warmup,
            floor=self.floor,
            every=self.every,
            rate=self.rate,
        )

    def optimizer(self, name: str) -> Optimizer:
        chosen = {key: getattr(self, key) for key in ("momentum", "beta1", "beta2", "eps", "decay")}
        return Optimizer(name, **{key: value for key, value in chosen.items() if value is not None})


def usual_settings(name: str, kinds: Sequence[TaskKind] = KINDS) -> dict[str, Any]:
    """What a setting is where nobody says, by kind of task."""
    return {kind.name: kind.defaults.get(name, getattr(Settings(), name)) for kind in kinds}


TYPES: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def _check_types(settings: Settings) -> None:
    for each in fields(settings):
        value, names = getattr(settings, each.name), str(each.type).split(" | ")
        if value is None and "None" in names:
            continue
        wanted = TYPES[names[0]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and names[0] != "bool"):
            article = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}[names[0]]
            raise TapelessError(f"{each.name} must be {article}, not {value!r}.")


@dataclass(frozen=True)
class Request:
    """A preset's name, the model's fields that differ from it, and the settings. Of a run the fields are all there are,
    and the name says no more than where they came from."""

    preset: str
    model: Mapping[str, Any]
    settings: Settings
    class_weights: tuple[float, ...] | None = None  # that its task has given it
    given: frozenset[str] = frozenset()  # settings that were named for this training: each must have an effect

    def resolved(self) -> Preset:
        """Where one batch makes an update and nobody says otherwise, a new training is lean."""
        if self.preset in PRESETS:
            return preset(self.preset).override(**{"lean": self.settings.accumulate == 1, **self.model})
        return Preset.of(self.preset, **self.model)

    def override(self, model: Mapping[str, Any], settings: Mapping[str, Any]) -> Request:
        if "steps" in settings and self.settings.epochs is not None:
            settings = {"epochs": None, **settings}
        if "epochs" in settings and self.settings.steps is not None:
            settings = {"steps": None, **settings}
        changed = replace(
            self,
            model={**self.model, **model},
            settings=replace(self.settings, **settings),
            given=self.given | {name for name, value in settings.items() if value is not None},
        )
        changed.settings.validate()
        return changed


def read_request(name: str) -> Request:
    """From a preset's name or a TOML file."""
    if not name.endswith(".toml"):
        if name not in PRESETS:
            with suppress(OSError):  # what is too long to be a file's name is none
                if Path(name).exists():
                    raise TapelessError(
                        f"{name} is neither a preset nor a .toml file: text to learn is named with --data, as in "
                        f"tapeless train gpt2-4x256 --data {name}, and a run is continued with --resume {name}."
                    )
            raise unknown("preset", name, PRESETS)
        return Request(name, {}, Settings())
    return request_from(read_toml(Path(name)), name)


@contextmanager
def naming_its_file(name: str, given: Collection[str]) -> Iterator[None]:
    """A sentence about a value of a training file begins with the file: some are found wrong only beside others, long
    after it was read. `given` are names on the command line, whose values count instead of the file's."""
    document = read_toml(Path(name)) if name.endswith(".toml") else {}
    values = {*document, *document.get("model", ())} - {*BESIDES, *given}
    try:
        yield
    except TapelessError as error:
        if any(re.search(rf"^(unknown )?{key}[ =]|\b{key}=|\({key}\)", str(error)) for key in values):
            error.args = (f"{name}: {error}",)
        raise


def _check_keys(settings: Collection[str], model: Any, where: str) -> None:
    """A key of the model that stands above [model], or one of the training that stands below it."""
    known = [each.name for each in fields(Settings)]
    for key in settings:
        if key not in known:
            wrong = unknown("key", key, [*known, *BESIDES])
            if key in OVERRIDABLE:
                wrong = TapelessError(f"{key} is a field of the model: write it below [model].")
            raise TapelessError(f"{where}: {wrong}")
    for key in model if isinstance(model, dict) else ():
        if key in known:
            raise TapelessError(f"{where}: {key} is no field of the model: write it above [model].")


def request_from(document: Mapping[str, Any], where: str) -> Request:
    if not document:
        raise TapelessError(f'{where} is empty: name what to train, as in preset = "ops-102k".')
    settings = {key: value for key, value in document.items() if key not in BESIDES}
    _check_keys(settings, document.get("model"), where)
    name, model, loss = document.get("preset", "ops-102k"), document.get("model", {}), document.get("loss", {})
    if document.get("format", FORMAT) != FORMAT:
        raise TapelessError(
            f"{where} has format {document['format']!r}, and this version reads {FORMAT}: "
            f"put back what it was made with, or use the version that made it."
        )
    if not isinstance(name, str) or (name not in PRESETS and "format" not in document):
        raise TapelessError(f"{where}: {unknown('preset', name, PRESETS)}")
    if not isinstance(model, dict):
        raise TapelessError(f"{where}: model must be a table of preset fields, not {model!r}.")
    weights = loss.get("class_weights") if isinstance(loss, dict) else loss
    if not isinstance(loss, dict) or not isinstance(weights, list | None) or loss.keys() - {"class_weights"}:
        model_has = "; what a model has as its loss stands below [model]" if isinstance(loss, str) else ""
        raise TapelessError(f"{where}: loss must be a table with class_weights in it, not {loss!r}{model_has}.")
    try:
        check_fields(model)
        request = Request(name, model, Settings(**settings), None if weights is None else tuple(weights))
        request.settings.validate()
    except TapelessError as error:
        raise TapelessError(f"{where}: {error}") from None
    return request


def as_toml(request: Request, chosen: Preset) -> str:
    """The resolved request, every field of the model included: a run does not change when a preset does."""
    lines = [f"format = {FORMAT}", f"preset = {json.dumps(request.preset)}"]
    for each in fields(Settings):
        value = getattr(request.settings, each.name)
        if value is not None:
            lines.append(f"{each.name} = {_toml(value)}")
    lines += ["", "[model]"]
    for key, value in chosen.values().items():
        if value is not None:
            lines.append(f"{key} = {_toml(value)}")
    if request.class_weights is not None:
        lines += ["", "[loss]", f"class_weights = {_toml(request.class_weights)}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # TOML has JSON's escapes, but wants DEL escaped, and knows no surrogates: those are no text in the first place.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
