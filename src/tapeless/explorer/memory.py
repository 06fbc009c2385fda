"""The arena of a run's step, and of the same step with other sizes, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.explorer.source import check_no_link
from tapeless.models.config import check_size
from tapeless.program.arena import Plan
from tapeless.program.call import PERSISTENT
from tapeless.program.listing import planned
from tapeless.step import StepSpec
from tapeless.train.run import CONFIGURATION, open_run

MOST_LAYERS = 400  # of a model that is planned for a page


@dataclass(frozen=True)
class Switches:
    """None: as the run has it."""

    batch: int | None = None
    time: int | None = None
    recompute: bool | None = None
    precision: str | None = None
    backend: str | None = None


def memory(folder: Path, wanted: Switches) -> dict[str, Any]:
    """Every buffer's place and time, and why it lives."""
    check_no_link(folder / CONFIGURATION)
    run = open_run(folder)
    request, preset = run.request(), run.preset()
    settings = request.settings
    if preset.architecture.layers > MOST_LAYERS:
        raise TapelessError(f"a model of {preset.architecture.layers} layers is too deep to be planned here.")
    if wanted.recompute is not None:
        preset = preset.override(recompute=wanted.recompute)
    batch = settings.batch or 1 if wanted.batch is None else wanted.batch
    time = settings.time or preset.architecture.context if wanted.time is None else wanted.time
    check_size("batch", batch)
    if time > preset.architecture.context and preset.architecture.positions == "learned":
        preset = preset.override(context=time)
    backend = settings.backend if wanted.backend is None else wanted.backend
    spec = StepSpec.of(
        preset,
        batch=batch,
        seq_len=time,
        optimizer=settings.optimizer(preset.optimizer),
        backend=backend,
        precision=wanted.precision or (settings.precision if wanted.backend is None else None),
        class_weights=request.class_weights,
    )
    plan = spec.plan()
    return planned(plan) | {
        "batch": batch,
        "time": time,
        "recompute": preset.layout.recompute,
        "backend": backend,
        "precisions": list(spec.backend.traits.precisions),
        "kinds": plan.bytes_by_kind(),
        "phases": [call.phase for call in plan.program.calls],
        "titles": [call.title for call in plan.program.calls],
        "sections": [call.section for call in plan.program.calls],
        "why": why(plan),
    }


def why(plan: Plan) -> dict[str, str]:
    """Of each buffer, what keeps it where it is."""
    program = plan.program
    readers: dict[str, int] = {}
    for number, call in enumerate(program.calls):
        for argument in call.arguments:
            for part in argument.view.parts:
                readers[part.buffer.name] = number
    found = {}
    for name, placement in plan.placements.items():
        if placement.buffer.members:
            continue
        kind = placement.buffer.kind
        if kind in PERSISTENT:
            found[name] = PERSISTS["lent" if kind == "gradient" and program.lent_gradients else kind]
        elif name in readers:
            last = program.calls[readers[name]]
            first = program.calls[placement.first_call]
            found[name] = (
                f"call {placement.first_call} ({first.title}) makes it, and call {readers[name]} ({last.title}, "
                f"{last.phase}) is the last that uses it"
            )
        else:
            call = program.calls[placement.first_call]
            found[name] = f"the kernel of call {placement.first_call} ({call.title}) works in it"
    return found


PERSISTS = {
    "weight": "a weight: it is what is learned, and stays from step to step",
    "master": "the master copy of the weights, in full precision: the update moves it",
    "frozen": "a weight that is not trained: it is read, and stays",
    "gradient": "a gradient: it is added to on the way back, and read by the update at the end",
    "lent": "a gradient: it is read by the update at the end, and until it is written others have its place",
    "state": "the optimizer remembers it from step to step",
    "constant": "it is filled once and never changes",
    "input": "the batch, or a number of this step: it is filled from outside before each one",
    "output": "it is read from outside after the step",
}
