"""`tapeless explain`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tapeless.cli.common import Json, console, print_json
from tapeless.cli.fields import Set, model_changes
from tapeless.cli.subject import PresetOrRun, Subject, SubjectBatch, SubjectTime, is_run, subject
from tapeless.errors import TapelessError
from tapeless.program.call import Call
from tapeless.program.explanation import Explanation
from tapeless.program.listing import UNWRITTEN, describe
from tapeless.step import DEFAULT_BACKEND

if TYPE_CHECKING:
    from tapeless.model import Model

Norms = dict[tuple[int, str], float]


def explain(
    name: PresetOrRun,
    batch: SubjectBatch = None,
    time: SubjectTime = None,
    layer: Annotated[int | None, typer.Option(help="Show the calls of this block alone.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Run one step and show the norm of every result.")] = False,
    lowered: Annotated[bool, typer.Option("--lowered", help="Show the list that a backend runs.")] = False,
    backend: Annotated[
        str | None, typer.Option(help="Show the list that this backend runs: cpu, cuda or reference.")
    ] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Show the training step, call by call, with formulas and shapes.

    Every line is one result. `=` overwrites, `+=` adds to what is there, `←` changes in place; a call marked ↻ computes
    again what was not kept. With --lowered, calls that a backend fuses stand together, and no gradient is zeroed that
    is written first. For a run it is the run's own step, and --values takes its newest weights and random tokens.

    Example: tapeless explain gpt2-4x256 --layer 0 --values
    """
    lowered = lowered or backend is not None
    if values and lowered:
        raise TapelessError("--values shows the calls as they are written, and --lowered as they run: leave out one.")
    # What is written is the same on every backend that keeps no master copy, and the reference needs NumPy alone.
    chosen = DEFAULT_BACKEND if values else backend or (None if is_run(name) or lowered else "reference")
    seen = subject(name, model_changes(set_), batch=batch, time=time, usual=(2, 64), backend=chosen)
    layers = seen.spec.preset.architecture.layers
    if layer is not None and not 0 <= layer < layers:
        raise TapelessError(f"there is no layer {layer}: {name} has layers 0 to {layers - 1}.")
    norms: Norms = {}
    if values:
        from tapeless.cli.progress import work_shown

        with work_shown(quiet=json):
            model = seen.model()
        program, norms = model.program, _norms_of_one_step(model)
    else:
        program = seen.spec.program()
    if lowered:
        from tapeless.lowering import lower, lowered_for

        program = lowered_for(lower(program, seen.spec.backend.rules(seen.spec.precision)))
    explanation = Explanation(seen.name, program, layer)
    if json:
        print_json(_as_json(explanation, norms))
    else:
        _print_listing(seen, explanation, norms)


def _norms_of_one_step(model: Model) -> Norms:
    """‖result‖ of every call, taken right after it ran, on a random batch."""
    import numpy as np

    from tapeless.bench.ours import random_batch

    steps = model.trace(*random_batch(model), lr=1e-3)
    return {
        (number, argument.name): float(np.linalg.norm(arrays[argument.name]))
        for number, (call, arrays) in enumerate(steps)
        for argument in call.writes
    }


def _as_json(explanation: Explanation, norms: Norms) -> list[dict[str, Any]]:
    described = [(number, describe(explanation.program, number)) for number, _ in explanation.calls]
    for number, entry in described:
        for result in entry["results"]:
            if (number, result["argument"]) in norms:
                result["norm"] = norms[number, result["argument"]]
    return [entry for _, entry in described]


def _print_listing(seen: Subject, explanation: Explanation, norms: Norms) -> None:
    console.print(f"[bold]{escape(seen.name)}[/]  {explanation.heading}")
    console.print(f"[dim]batch {seen.spec.batch}, time {seen.spec.seq_len}[/]")
    legend = ",  ".join(f"[bold]{letter}[/] {meaning}" for letter, meaning in explanation.legend.items())
    console.print(f"[dim]{legend}[/]")
    if any(len(call.parts) > 1 for _, call in explanation.calls):
        console.print(f"[dim]{explanation.signs}[/]")
    for group in explanation.groups:
        console.print(f"\n[bold cyan]{group.name.upper()}[/]  {group.title}  [dim]{group.cost}[/]")
        for stretch in group.stretches:
            if stretch.note:
                console.print(f" [dim]{stretch.note} (--layer N shows one)[/]")
                continue
            if stretch.section:
                console.print(f" [bold]{stretch.section}[/]")
            console.print(_table(explanation, stretch.calls, norms))


def _table(explanation: Explanation, calls: Sequence[tuple[int, Call]], norms: Norms) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", width=5)
    table.add_column(style="cyan", no_wrap=True, width=15)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", style="dim", no_wrap=True)
    if norms:
        table.add_column(justify="right", style="green", no_wrap=True)
    results = [(number, result) for number, call in calls for part in call.parts for result in part.writes]
    of_results = [norms.get((number, result.name)) for number, result in results]
    for (number, op, name, sign, formula, shape), norm in zip(explanation.rows(calls), of_results, strict=True):
        mark = {"=": "green", "+=": "yellow", "←": "magenta", UNWRITTEN: "dim"}[sign]
        row: list[str | Text] = [number, op, Text(name), Text(sign, style=f"bold {mark}"), Text(formula), shape]
        table.add_row(*row, *([] if norm is None else [f"‖{norm:.3g}‖"]))
    return table
