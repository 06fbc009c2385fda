"""Options that would have no effect beside the others: refused, because who gives one expects something of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tapeless.backends import gpu
from tapeless.backends.backend import AUTO, backend_named, thread_count
from tapeless.errors import TapelessError
from tapeless.files.plain import read_toml
from tapeless.labelling.run import EVERY_KIND
from tapeless.model import DEFAULT_BACKEND
from tapeless.models.config import Preset
from tapeless.tasks.kinds import kind_of, usual_data
from tapeless.train.machine import has_choice
from tapeless.train.run import Run
from tapeless.train.session import OF_A_TRAINING
from tapeless.train.settings import Request, Settings

ADAM = ("adam", "adamw", "muon")
# What a setting is part of, and whether that is at work.
PART_OF: dict[str, tuple[str, Callable[[Settings, Preset], bool]]] = {
    "momentum": ("the optimizers momentum and muon", lambda settings, preset: preset.optimizer in ("momentum", "muon")),
    "beta1": ("adam, adamw and muon", lambda settings, preset: preset.optimizer in ADAM),
    "beta2": ("adam, adamw and muon", lambda settings, preset: preset.optimizer in ADAM),
    "eps": ("adam, adamw and muon", lambda settings, preset: preset.optimizer in ADAM),
    "decay": ("adamw and muon", lambda settings, preset: preset.optimizer in ("adamw", "muon")),
    "floor": ("the schedules cosine and linear", lambda settings, preset: settings.schedule in ("cosine", "linear")),
    "every": ("the schedules step and exponential", lambda settings, preset: _falls(settings)),
    "rate": ("the schedules step and exponential", lambda settings, preset: _falls(settings)),
    "threads": ("the cpu backend", lambda settings, preset: _on_cpu(settings)),
    "products": (
        "the cpu backend in float32, and of Muon",
        lambda settings, preset: (
            _on_cpu(settings) and has_choice(backend_named("cpu"), settings.precision, preset.optimizer)
        ),
    ),
}


def _on_cpu(settings: Settings) -> bool:
    return settings.backend == "cpu" or (settings.backend == AUTO and not gpu.is_there())


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
    given: Mapping[str, Any],
    request: Request,
    changes: Mapping[str, Any],
    *,
    base: Run | None = None,
    folder: Path | None = None,
) -> None:
    """`given` and `changes` are settings and fields of the command line; what stands in a file may be there for
    another day. `folder` is that of a run which goes on."""
    if base is not None:
        theirs = base.request()
        request = replace(request, preset=theirs.preset, model={**theirs.model, **OF_A_TRAINING, **request.model})
    preset = request.resolved()
    data = request.settings.data or usual_data(request.preset)
    kind = kind_of(data, folder, EVERY_KIND)
    settings = request.settings.suited(preset.architecture, kind)
    refuse_idle_fields(changes, preset, {})
    for name in given:
        if name in PART_OF and not PART_OF[name][1](settings, preset):
            raise idle(name, f"it is part of {PART_OF[name][0]}")
    unused = kind.unused(data or "", base is not None and base.tokenizer_spec() is not None)
    for name in given:
        if name in unused:
            raise idle(name, unused[name])


def idle(name: str, why: str) -> TapelessError:
    return TapelessError(f"--{name.replace('_', '-')} would have no effect, as {why}: leave it out.")


def take_threads(backend: str, threads: int | None) -> None:
    """What --threads asks for."""
    if threads is not None and thread_count(backend_named(backend), threads) is None:
        raise idle("threads", f"they are those of the {DEFAULT_BACKEND} backend")


def refuse_idle_fields(changes: Mapping[str, Any], preset: Preset, unseen: Mapping[str, str]) -> None:
    """Fields of a preset that a command cannot show anything of, each with why; and those that another one disables."""
    for name in changes:
        if name in unseen:
            raise idle(name, unseen[name])
    if "keep_norms" in changes and (preset.layout.recompute or preset.architecture.placement == "post"):
        computed = "the block is computed again" if preset.layout.recompute else "a post-norm block keeps them anyway"
        raise idle("keep_norms", computed)
    if "chunk" in changes and preset.architecture.loss == "squared_error":
        raise idle("chunk", "a squared error has no logits")
