"""Options that would have no effect beside the others: refused, because who gives one expects something of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.plain import read_toml
from tapeless.labelling.run import EVERY_KIND
from tapeless.models.config import Config
from tapeless.models.presets import preset
from tapeless.tasks.kinds import kind_of, usual_data
from tapeless.train.run import Run
from tapeless.train.settings import Request, Settings

ADAM = ("adam", "adamw")
# What a setting is part of, and whether that is at work.
PART_OF: dict[str, tuple[str, Callable[[Settings, Config], bool]]] = {
    "momentum": ("the optimizer momentum", lambda settings, config: config.optimizer == "momentum"),
    "beta1": ("adam and adamw", lambda settings, config: config.optimizer in ADAM),
    "beta2": ("adam and adamw", lambda settings, config: config.optimizer in ADAM),
    "eps": ("adam and adamw", lambda settings, config: config.optimizer in ADAM),
    "decay": ("adamw", lambda settings, config: config.optimizer == "adamw"),
    "floor": ("the schedules cosine and linear", lambda settings, config: settings.schedule in ("cosine", "linear")),
    "every": ("the schedules step and exponential", lambda settings, config: _falls(settings)),
    "rate": ("the schedules step and exponential", lambda settings, config: _falls(settings)),
    "threads": ("the cpu backend", lambda settings, config: settings.backend == "cpu"),
}


def _falls(settings: Settings) -> bool:
    return settings.schedule in ("step", "exponential")


def refuse_other_preset(file: Path, base: Run) -> None:
    """A training file that names another preset than the run whose weights are taken."""
    theirs = base.request().preset
    named = read_toml(file).get("preset", theirs)
    if named != theirs:
        raise TapelessError(
            f"{file} names the preset {named}, which would have no effect, as {base.folder} brings the model of "
            f"{theirs}: leave it out."
        )


def refuse_idle(
    given: Mapping[str, Any], request: Request, changes: Mapping[str, Any], *, base: Run | None = None,
    folder: Path | None = None,
) -> None:  # fmt: skip
    """`given` and `changes` are settings and fields of the command line; what stands in a file may be there for
    another day. `folder` is that of a run which goes on."""
    if base is not None:
        theirs = base.request()
        request = replace(request, preset=theirs.preset, model={**theirs.model, **request.model})
    config = preset(request.preset).override(**request.model)
    data = request.settings.data or usual_data(request.preset)
    kind = kind_of(data, folder, EVERY_KIND)
    settings = request.settings.suited(config, kind)
    refuse_idle_fields(changes, config, {})
    for name in given:
        if name in PART_OF and not PART_OF[name][1](settings, config):
            raise idle(name, f"it is part of {PART_OF[name][0]}")
    unused = kind.unused(data or "", base is not None and base.tokenizer_spec() is not None)
    for name in given:
        if name in unused:
            raise idle(name, unused[name])


def idle(name: str, why: str) -> TapelessError:
    return TapelessError(f"--{name.replace('_', '-')} would have no effect, as {why}: leave it out.")


def refuse_idle_fields(changes: Mapping[str, Any], config: Config, unseen: Mapping[str, str]) -> None:
    """Fields of a preset that a command cannot show anything of, each with why; and those that another one disables."""
    for name in changes:
        if name in unseen:
            raise idle(name, unseen[name])
    if "chunk" in changes and config.loss == "squared_error":
        raise idle("chunk", "a squared error has no logits")
