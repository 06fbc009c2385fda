"""A request with every default filled in, once: what a new training is begun with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tapeless.errors import TapelessError
from tapeless.inputs import check_shape
from tapeless.models.adapters import merged
from tapeless.models.config import Preset
from tapeless.ops.contract import Array
from tapeless.tasks.kinds import kind_of, usual_data
from tapeless.tasks.task import TaskKind
from tapeless.train.base import all_weights
from tapeless.train.run import Run
from tapeless.train.settings import Request, Settings

# What is trained, and what adapts it, belongs to a training and not to the weights that it started from.
OF_A_TRAINING: dict[str, Any] = {
    "frozen": (),
    "frozen_precision": None,
    "train": (),
    "lora": None,
    "lora_alpha": None,
    "lora_targets": (),
}
OF_ANY_MODEL = ("optimizer", "recompute", "chunk", "keep_norms", "lean", "dropout")  # whatever weights it begins with


@dataclass(frozen=True)
class Resolved:
    """Complete settings, the model, the kind of task, and the weights of the run that it starts from, if any."""

    request: Request
    preset: Preset
    kind: TaskKind
    weights: Mapping[str, Array] | None
    messages: list[str]  # what the user should know


def resolve(request: Request, base: Run | None = None) -> Resolved:
    """For a new training; `base` is a run whose best weights it starts from."""
    weights: Mapping[str, Array] | None = None
    messages: list[str] = []
    if base is not None:
        request, weights, messages = _based_on(request, base)
    preset = request.resolved()
    if base is None and preset.lora is not None:
        raise TapelessError("--lora adapts a model that is there already: name its run with --init-from.")
    if preset.architecture.features:
        raise TapelessError(
            f"{preset.name} reads features, and train knows text and the operations task: choose a preset that reads "
            f"tokens, such as ops-102k."
        )
    settings = replace(request.settings, data=_data(request))
    kind = kind_of(settings.data)
    config = preset.architecture
    if base is None and "context" in request.model and settings.time is None:
        settings = replace(settings, time=config.context)
    settings = settings.suited(config, kind)
    length = sequence_length(kind, settings)
    if base is None and "context" not in request.model:  # a position that no window reaches would never learn anything
        preset = preset.override(context=length)
        request = replace(request, model={**request.model, "context": length})
    elif base is None and length < config.context:
        messages = [
            f"context={config.context} and time={length}: of its {config.context} positions it learns the first "
            f"{length}, and sampling keeps to those."
        ]
    check_shape(preset.architecture, settings.batch or 1, length)
    return Resolved(replace(request, settings=settings), preset, kind, weights, messages)


def sequence_length(kind: TaskKind, settings: Settings) -> int:
    """The length of the sequences that are trained on."""
    length = kind.length or settings.time
    assert length is not None  # the kind's defaults have seen to it
    return length


def _data(request: Request) -> str:
    found = request.settings.data or usual_data(request.preset)
    if found is None:
        raise TapelessError(
            f"{request.preset} learns from text, and none was named: give a file, a folder or tokens with --data, "
            f"or --data stdlib for the source of Python itself."
        )
    return found


def _based_on(request: Request, base: Run) -> tuple[Request, dict[str, Array], list[str]]:
    """The model is the base's; its width or depth cannot change, as its weights must fit. Adapters that it has are
    part of its weights now."""
    for name in request.model:
        if name not in (*OF_ANY_MODEL, *OF_A_TRAINING):
            raise TapelessError(f"{name} belongs to the model that {base.folder} brings: leave it out.")
    found, messages = base.checkpoint("best")
    theirs, context = base.request(), base.preset().architecture.context
    settings = request.settings
    if kind_of(settings.data).length is None:
        time = settings.time or base.window()
        if time > context:
            raise TapelessError(
                f"time={time} is longer than the {context} positions that {base.folder} brings: use at most {context}."
            )
        settings = replace(settings, time=time)
    weights = merged(base.preset(), all_weights(found))
    model = {**theirs.model, **OF_A_TRAINING, "lean": settings.accumulate == 1, **request.model}
    return replace(request, preset=theirs.preset, model=model, settings=settings), weights, messages
