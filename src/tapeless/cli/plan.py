"""`tapeless plan`"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from rich.table import Table

from tapeless.backends.backend import backend_named, precision_for
from tapeless.cli.common import (
    Batch,
    Json,
    PresetName,
    Time,
    bars,
    console,
    flops,
    print_json,
    shape,
    size,
    with_preset_fields,
)
from tapeless.cli.idle import refuse_idle_fields
from tapeless.inputs import check_shape
from tapeless.model import DEFAULT_BACKEND, plans
from tapeless.models.config import Optimizer
from tapeless.models.presets import preset
from tapeless.program import listing
from tapeless.program.arena import KERNEL_SCRATCH, Placement, Plan


@with_preset_fields
def plan(
    name: PresetName,
    batch: Batch = 1,
    time: Time = None,
    backend: Annotated[str, typer.Option(help="The backend that will run it.")] = DEFAULT_BACKEND,
    precision: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; the backend's own by default.")
    ] = None,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Memory to the byte and FLOPs, before anything is allocated.

    Example: tapeless plan gpt2-124m -B 4 -T 64 --recompute
    """
    wanted = preset(name).override(**changes)
    refuse_idle_fields(changes, wanted, {"initialisation": "no weight is made here", "norm_eps": "it takes no memory"})
    time = wanted.architecture.context if time is None else time
    check_shape(wanted.architecture, batch, time)
    kind = backend_named(backend)
    planned = plans(wanted, batch, time, Optimizer(wanted.optimizer), precision_for(kind, precision), kind)[0]
    if json:
        print_json({"preset": name} | listing.planned(planned))
    else:
        _print(name, batch, time, planned)


def _print(name: str, batch: int, time: int, planned: Plan) -> None:
    peak = planned.program.calls[planned.peak_call]
    console.print(f"[bold]{name}[/]  batch {batch}, time {time}, {planned.precision.name}")
    summary = Table.grid(padding=(0, 2))
    summary.add_row("parameters", f"{planned.parameters:,}")
    summary.add_row("work", f"{flops(planned.flops)} a step, in {len(planned.program.calls)} calls")
    summary.add_row("arena", f"[bold]{planned.peak_bytes:,} bytes[/] ({size(planned.peak_bytes)})")
    where = f"{peak.section + ', ' if peak.section else ''}{peak.phase}"
    summary.add_row("peak", f"at call {planned.peak_call}, {peak.title} ({where}, {peak.source})")
    console.print(summary)

    console.print(f"\n[dim]bytes in use, call by call ({', '.join(_phases(planned))})[/]")
    console.print(f"[cyan]{bars([float(b) for b in planned.live_bytes], min(console.width - 2, 100))}[/]")

    table = Table(box=None, header_style="dim", title_justify="left")
    table.add_column("region")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    for kind, total in planned.bytes_by_kind().items():
        table.add_row(kind, f"{total:,}", size(total))
    console.print(table)

    table = Table(box=None, header_style="dim")
    for column in ("buffer", "kind", "shape", "each", "count", "calls"):
        table.add_column(column, justify="right" if column in ("each", "count") else "left")
    for label, group in _grouped(planned):
        first = group[0]
        table.add_row(
            label,
            first.kind,
            shape(first.buffer.shape),
            size(first.bytes),
            str(len(group)),
            _when(group),
        )
    console.print()
    console.print(table)
    console.print("[dim]saved and scratch buffers share the workspace; --json lists every buffer with its offset.[/]")


def _phases(planned: Plan) -> list[str]:
    seen = dict.fromkeys(call.phase for call in planned.program.calls if call.phase != "recompute")
    return list(seen)


def _grouped(planned: Plan) -> list[tuple[str, list[Placement]]]:
    """Buffers that differ only in their block's number stand in one row."""
    groups: dict[tuple[Any, ...], list[Placement]] = {}
    for placement in planned.placements.values():
        if not placement.buffer.members:
            label = re.sub(r"^blocks\.\d+\.", "blocks.N.", placement.buffer.name)
            if placement.kind == KERNEL_SCRATCH:
                label = label.rpartition(", call ")[0]
            groups.setdefault((label, placement.kind, placement.buffer.shape), []).append(placement)
    return [(key[0], group) for key, group in groups.items()]


def _when(group: list[Placement]) -> str:
    if group[0].buffer.kind != "workspace":
        return "always"
    spans = ", ".join(f"{first}–{last}" for first, last in group[0].ranges)
    return spans if len(group) == 1 else f"{spans}, …"
