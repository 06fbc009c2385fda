"""`tapeless explain`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tapeless.cli.common import (
    Json,
    compiling_shown,
    console,
    flops,
    print_json,
    shape,
    with_preset_fields,
)
from tapeless.cli.idle import refuse_idle_fields
from tapeless.cli.subject import PresetOrRun, Subject, SubjectBatch, SubjectTime, subject
from tapeless.errors import TapelessError
from tapeless.model import DEFAULT_BACKEND, Model
from tapeless.models import transformer
from tapeless.models.config import Preset
from tapeless.ops.contract import LEGEND
from tapeless.program.call import Call, Program
from tapeless.program.listing import describe, local_name, runs_of_sections

GROUPS = {
    "forward": ("zero", "forward"),
    "backward": ("recompute", "backward"),
    "update": ("clip", "update"),
}
TITLES = {
    "forward": "from the inputs to the state that is judged",
    "backward": "from the loss to every gradient, in exact reverse (↻ computed again, not kept)",
    "update": "one step down the gradient",
}
Norms = dict[tuple[int, str], float]


@with_preset_fields
def explain(
    name: PresetOrRun,
    batch: SubjectBatch = None,
    time: SubjectTime = None,
    layer: Annotated[int | None, typer.Option(help="Only the calls of this block.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Run one step and show the norm of every result.")] = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """The training step, call by call, with formulas and shapes.

    Every line is one result. `=` overwrites, `+=` adds to what is there, `←` changes in place;
    a call marked ↻ computes again what was not kept. Of a run it is its own step, and the values are those of its
    newest weights on random words.

    Example: tapeless explain gpt2-4x256 --layer 0 --values
    """
    backend = DEFAULT_BACKEND if values else None
    seen = subject(name, changes, batch=batch, time=time, usual=(2, 64), backend=backend)
    wanted, config = seen.preset, seen.preset.architecture
    unseen = {} if values else {"initialisation": "no weight is made without --values"}
    refuse_idle_fields(changes, wanted, unseen if seen.run is None else {"initialisation": "the run has its weights"})
    if layer is not None and not 0 <= layer < config.layers:
        raise TapelessError(f"there is no layer {layer}: {name} has layers 0 to {config.layers - 1}.")
    norms: Norms = {}
    if values:
        with compiling_shown(quiet=json):
            model = seen.model()
        program, norms = model.program, _norms_of_one_step(model)
    else:
        program = transformer.training(
            wanted, seen.batch, seen.time, seen.optimizer, master=seen.precision.has_master,
            weighted=seen.class_weights is not None,
        )  # fmt: skip
    if json:
        print_json(_as_json(program, layer, norms))
    else:
        _print_listing(seen, program, layer, norms)


def _norms_of_one_step(model: Model) -> Norms:
    """‖result‖ of every call, taken right after it ran, on a random batch."""
    rng = np.random.default_rng(0)
    shape = (model.batch, model.time)
    targets = rng.integers(0, model.config.vocab, shape if model.config.readout == "all" else shape[:1])
    if model.config.features:
        steps = model.trace(rng.normal(size=(*shape, model.config.features)), targets, lr=1e-3)
    else:
        steps = model.trace(rng.integers(0, model.config.vocab, shape), targets, lr=1e-3)
    return {
        (number, argument.name): float(np.linalg.norm(arrays[argument.name]))
        for number, (call, arrays) in enumerate(steps)
        for argument in call.writes
    }


def _as_json(program: Program, layer: int | None, norms: Norms) -> list[dict[str, Any]]:
    described = []
    for number, _ in _chosen(program, layer):
        entry = describe(program, number)
        for result in entry["results"]:
            if (number, result["argument"]) in norms:
                result["norm"] = norms[number, result["argument"]]
        described.append(entry)
    return described


def _chosen(program: Program, layer: int | None) -> list[tuple[int, Call]]:
    numbered = list(enumerate(program.calls))
    return numbered if layer is None else [(n, c) for n, c in numbered if c.section == f"blocks.{layer}"]


def _print_listing(seen: Subject, program: Program, layer: int | None, norms: Norms) -> None:
    used = {letter for call in program.calls for letter in call.dims if not letter.isdigit()}
    legend = ",  ".join(f"[bold]{letter}[/] {LEGEND[letter]}" for letter in LEGEND if letter in used)
    frozen = sum(weight.elements for weight in program.weights if weight.kind == "frozen")
    parameters = f"{program.parameters:,} parameters" + (f" ({frozen:,} frozen)" if frozen else "")
    calls = f"{len(program.calls)} calls, {parameters}, {flops(program.flops)} a step"
    console.print(f"[bold]{escape(seen.name)}[/]  {calls}")
    console.print(f"[dim]batch {seen.batch}, time {seen.time}[/]")
    console.print(f"[dim]{legend}[/]")
    numbered = _chosen(program, layer)
    for group, phases in GROUPS.items():
        members = [(number, call) for number, call in numbered if call.phase in phases]
        if members:
            cost = flops(sum(call.flops for _, call in members))
            console.print(f"\n[bold cyan]{group.upper()}[/]  {TITLES[group]}  [dim]{cost}[/]")
            _print_group(seen.preset, program, members, norms, fold=layer is None)


def _print_group(preset: Preset, program: Program, members: list[tuple[int, Call]], norms: Norms, fold: bool) -> None:
    """Sections in turn. In a deep model the inner blocks repeat the outer ones: one line stands for them."""
    runs = runs_of_sections(members)
    blocks = [index for index, (section, _) in enumerate(runs) if section.startswith("blocks.")]
    folded = set(blocks[1:-1]) if fold and preset.architecture.layers > 3 else set()
    for index, (section, calls) in enumerate(runs):
        if index not in folded:
            if section:
                console.print(f" [bold]{section}[/]")
            console.print(_table(program, calls, norms))
        elif index - 1 not in folded:
            last = runs[max(folded)]
            numbers = f"calls {calls[0][0]}–{last[1][-1][0]}"
            note = f"{section} … {last[0]}: {numbers}, the same again (--layer N shows one)"
            console.print(f" [dim]{note}[/]")


def _table(program: Program, calls: Iterable[tuple[int, Call]], norms: Norms) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", width=5)
    table.add_column(style="cyan", no_wrap=True, width=15)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", style="dim", no_wrap=True)
    if norms:
        table.add_column(justify="right", style="green", no_wrap=True)
    for number, call in calls:
        entry = describe(program, number)
        head = f"{call.op}{' ↻' if call.phase == 'recompute' else ''}"
        for result in entry["results"]:
            mark = {"=": "green", "+=": "yellow", "←": "magenta"}[result["sign"]]
            row: list[str | Text] = [
                str(number) if head else "",
                head,
                local_name(result["buffer"], call.section),
                Text(result["sign"], style=f"bold {mark}"),
                Text(result["reads_as"]),
                shape(result["shape"]),
            ]
            if norms:
                row.append(f"‖{norms[number, result['argument']]:.3g}‖")
            table.add_row(*row)
            head = ""
    return table
