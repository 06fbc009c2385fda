"""`tapeless plan`"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.backends.memory import BESIDE, LIBRARIES, Memory, memory_of, parsed_memory
from tapeless.cli.common import Json, PrecisionName, bars, console, flops, print_json, shape, size, table
from tapeless.cli.fields import Set, model_changes
from tapeless.cli.subject import PresetOrRun, Subject, SubjectBatch, SubjectTime, is_run, subject
from tapeless.program import listing
from tapeless.program.arena import KERNEL_SCRATCH, Placement, Plan

NARROW = 70  # columns of a terminal below which the names of buffers are folded, too


def plan(
    name: PresetOrRun,
    batch: SubjectBatch = None,
    time: SubjectTime = None,
    backend: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or reference. Default: cpu, or the one of the run.", show_default=False),
    ] = None,
    precision: PrecisionName = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Plan for another machine with so much memory, such as 16GB.")
    ] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Show the memory of a training step to the byte, and its FLOPs, before anything is allocated.

    Says whether this machine, or one with --memory, has that much, and the largest batch that fits.

    Example: tapeless plan gpt2-124m -B 4 -T 64 --set recompute=true --memory 16GB
    """
    asked = None if memory is None else parsed_memory(memory)
    changes = model_changes(set_)
    fields = changes if is_run(name) else {"lean": True, **changes}  # as `train` would have it
    seen = subject(name, fields, batch=batch, time=time, usual=(1, None), backend=backend, precision=precision)
    spec, planned = seen.spec, seen.spec.plan()
    there = memory_of(spec.backend.name) if asked is None else Memory(asked, asked)
    beside = LIBRARIES if spec.backend.name == "cuda" else BESIDE
    needed = planned.peak_bytes + beside
    with console.status("looking for the largest batch") as status:
        if json:
            status.stop()
        if there is None:
            largest = None
        elif spec.batch == 1 and needed > there.free:
            largest = 0  # which took no further plan to find out
        else:
            largest = spec.largest_batch(there.free, beside)
    if json:
        fits = None if there is None else needed <= there.free
        memory_there = None if there is None else vars(there)
        answer = {"needed_bytes": needed, "memory": memory_there, "fits": fits, "largest_batch": largest}
        held = spec.preset.frozen_precision
        about = {"preset": name, "batch": spec.batch, "time": spec.seq_len, "frozen_precision": held}
        print_json(about | listing.planned(planned) | answer)
    else:
        _print_summary(seen, planned)
        _print_buffers(planned)
        _print_answer(seen, planned, beside, there, largest, memory)


def _print_summary(seen: Subject, planned: Plan) -> None:
    peak, spec = planned.program.calls[planned.peak_call], seen.spec
    about = f"batch {spec.batch}, time {spec.seq_len}, {spec.backend.name} backend, {planned.precision.described()}"
    console.print(f"[bold]{escape(seen.name)}[/]  {about}")
    where = f"{peak.section + ', ' if peak.section else ''}{peak.phase}"
    facts = [
        ("parameters", f"{planned.parameters:,}"),
        ("work", f"{flops(planned.flops)} a step, in {len(planned.program.calls)} calls"),
        ("peak", f"at call {planned.peak_call}, {peak.title} ({where}, {peak.source})"),
    ]
    console.print(table(("", ""), facts))
    phases = dict.fromkeys(call.phase for call in planned.program.calls if call.phase != "recompute")
    console.print(f"\n[dim]bytes in use, call by call ({', '.join(phases)})[/]")
    console.print(f"[cyan]{bars([float(each) for each in planned.live_bytes])}[/]")
    regions = [(kind, f"{total:,}", size(total)) for kind, total in planned.bytes_by_kind().items()]
    regions.append(("[bold]all", f"[bold]{planned.peak_bytes:,}", f"[bold]{size(planned.peak_bytes)}"))
    console.print(table(("region", ">bytes", ">"), regions))


def _print_buffers(planned: Plan) -> None:
    rows = []
    for label, group in _grouped(planned):
        first = group[0]
        kind = first.kind.removesuffix(" scratch")
        rows.append((label, kind, shape(first.buffer.shape), size(first.bytes), _when(group, planned)))
    console.print()
    buffer = "<buffer" if console.width >= NARROW else "buffer"
    console.print(table((buffer, "kind", "shape", ">each", "calls"), rows))
    console.print(
        f"[dim]{'gradients, ' if planned.program.lent_gradients else ''}saved, scratch and kernel buffers share the "
        f"workspace; --json lists every buffer with its offset.[/]\n"
    )


def _print_answer(
    seen: Subject, planned: Plan, beside: int, there: Memory | None, largest: int | None, asked: str | None
) -> None:
    """The last lines, which a terminal shows without scrolling."""
    arena, persistent = planned.peak_bytes, planned.workspace_offset
    gpu = seen.spec.backend.name == "cuda"
    user = "torch and its libraries" if gpu else "Python itself"
    console.print(f"It needs [bold]{size(arena)}[/] ({arena:,} bytes), and some {beside >> 20} MiB for {user}.")
    if there is None or largest is None:
        hint = "There is no GPU here" if gpu else "This machine does not tell its memory"
        console.print(f"{hint}: --memory 16GB asks for one that has so much.")
        return
    where = "The GPU here" if gpu else "This machine"
    has = f"{where} has {size(there.free)} free of {size(there.total)}" if asked is None else f"With {escape(asked)}"
    fits = arena + beside <= there.free
    console.print(f"{has}: {'[bold green]it fits[/]' if fits else '[bold red]it does not fit[/]'}.")
    if persistent + beside > there.free:
        named = "weights" if planned.program.lent_gradients else "weights, gradients"
        console.print(f"Its {named} and optimizer's state alone take {size(persistent)}.")
    elif largest:
        console.print(f"The largest batch that fits at time {seen.spec.seq_len} is [bold]{largest:,}[/].")
    else:
        less = "a shorter --time" if seen.spec.preset.layout.recompute else "--set recompute=true, or a shorter --time"
        console.print(f"Not even one sequence of {seen.spec.seq_len} positions fits: try {less}.")


def _grouped(planned: Plan) -> list[tuple[str, list[Placement]]]:
    """Buffers that differ only in their block's number stand in one row, with the numbers."""
    groups: dict[tuple[Any, ...], list[tuple[int, Placement]]] = {}
    for placement in planned.placements.values():
        if placement.buffer.members:
            continue
        name = placement.buffer.name
        if placement.kind == KERNEL_SCRATCH:  # of whichever block: what matters is whose
            name = name.split(", ")[1]
        block = re.match(r"blocks\.(\d+)\.", name)
        key = (block is not None, name[block.end() :] if block else name, placement.kind, placement.buffer.shape)
        groups.setdefault(key, []).append((int(block[1]) if block else -1, placement))
    found = []
    for (inside, label, kind, _), members in groups.items():
        if inside:
            label = f"blocks.{_spans(sorted(number for number, _ in members))}.{label}"
        elif kind == KERNEL_SCRATCH and len(members) > 1:
            label += f" ×{len(members)}"
        found.append((label, [placement for _, placement in members]))
    return found


def _spans(numbers: list[int]) -> str:
    """0–11, or 0–2,5 where some between them differ."""
    firsts = [n for n in numbers if n - 1 not in numbers]
    lasts = [n for n in numbers if n + 1 not in numbers]
    return ",".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(firsts, lasts, strict=True))


def _when(group: list[Placement], planned: Plan) -> str:
    if group[0].offset < planned.workspace_offset:
        return "always"
    spans = ", ".join(f"{first}–{last}" if first < last else str(first) for first, last in group[0].ranges)
    return spans if len(group) == 1 else f"{spans}, …"
