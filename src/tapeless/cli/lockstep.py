"""`tapeless check --backend`: a backend compared with the reference, call by call."""

from __future__ import annotations

from math import prod

import typer
from rich.markup import escape

from tapeless.backends.backend import backend_named, thread_count
from tapeless.check.configurations import CONFIGURATIONS, LARGER, Configuration
from tapeless.check.finding import Finding
from tapeless.check.lockstep import Difference, lockstep, pair
from tapeless.check.ops import ops_alone
from tapeless.check.ranges import RangeError, range_errors
from tapeless.check.threads import check_on_threads
from tapeless.cli.common import console, print_json, table
from tapeless.cli.progress import one_by_one
from tapeless.errors import NotYetError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops import OPS

SHOWN = 12
Found = list[tuple[str, Difference]]  # by the name of a configuration


def check_backend(backend: str, asked: list[Configuration], json: bool) -> None:
    """Check the configurations that are `asked` for, or all of them and every op alone."""
    chosen = asked or [*CONFIGURATIONS, *LARGER]
    found: Found = [] if asked else [(f"op {each.call.op}", each) for each in ops_alone(backend)]
    alone, left_out = len({name for name, _ in found}), dict[str, str]()
    for each in one_by_one(chosen, lambda configuration: configuration.name, json):
        try:
            found += [(each.name, difference) for difference in lockstep(*pair(each, backend))]
        except NotYetError as error:
            if asked:
                raise
            left_out[each.name] = str(error)
    kind = backend_named(backend)
    # These two look at kernels that have this machine's threads and memory.
    ops = [] if asked or thread_count(kind) is None else list(OPS)
    on_threads = one_by_one(ops, lambda name: f"{name} on threads", json)
    races = [finding for name in on_threads for finding in check_on_threads(name)]
    over_the_range = one_by_one(ops, lambda name: f"{name} over the whole range", json)
    ranges = [error for name in over_the_range for error in range_errors(name, kind)]
    found.sort(key=lambda pair: -pair[1].share)
    broken, outside = _first_broken(found), [error for error in ranges if not error.ok]
    ok = not broken and not races and not outside
    if json:
        print_json(
            {
                "ok": ok,
                "backend": backend,
                "worst": found[0][1].error,
                "worst_share_of_tolerance": found[0][1].share,
                "tensors": len(found),
                "elements": sum(prod(each.call[each.argument].shape) for _, each in found),
                "configs": len(chosen) + alone,
                "broken": [*(f"{name}: {difference}" for name, difference in broken.items()), *map(str, outside)],
                "ranges": [vars(error) for error in ranges],
                "threads": [str(finding) for finding in races],
                "left_out": list(left_out),
            }
        )
    else:
        _print(backend, found, broken)
        if left_out:
            console.print(f"[yellow]Left out: {', '.join(left_out)}: {next(iter(left_out.values()))}[/]")
        if ops:
            _print_on_threads(races)
            _print_ranges(ranges, outside)
    if not ok:
        raise typer.Exit(1)


def _first_broken(found: Found) -> dict[str, Difference]:
    """The first call that is off, per configuration: one is enough to start with."""
    broken = sorted((pair for pair in found if not pair[1].ok), key=lambda pair: -pair[1].number)
    return dict(broken)  # the last of each name, whose number is the smallest


def _print(backend: str, found: Found, broken: dict[str, Difference]) -> None:
    configurations = len({name for name, _ in found})
    for name, difference in broken.items():
        console.print(f"[bold red]{name}[/]: {escape(str(difference))}")
    if broken:
        console.print(f"\n[bold red]{len(broken)} of {configurations} configurations break[/]: see the calls above.")
        return
    rows = [
        (f"{each.share:.0%}", f"{each.error:.1e}", each.call.title, each.argument, name) for name, each in found[:SHOWN]
    ]
    console.print(table((">of allowed", ">error", "call", "result", "configuration"), rows))
    console.print(
        f"\n[bold green]The {backend} backend agrees with the reference[/]: {len(found):,} results of single calls in "
        f"{configurations} configurations, each within its tolerance."
    )


def _print_on_threads(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"[bold red]{escape(str(finding))}[/]")
    if not findings and cpu_kernels.cores() == 1:
        console.print("[yellow]There is one core: what its kernels do on threads could not be tried.[/]")
    elif not findings:
        console.print(
            f"[bold green]No two threads meet[/]: all {len(OPS)} ops at sizes that thread, in every order of their "
            f"parallel loops, and again and again."
        )


def _print_ranges(ranges: list[RangeError], outside: list[RangeError]) -> None:
    for error in outside:
        console.print(f"[bold red]{error.op}[/]: {escape(str(error))}")
    if not outside:
        kernels = {(error.op, error.direction): error.values for error in ranges}
        worst = max(ranges, key=lambda error: error.share)
        console.print(
            f"[bold green]Over the whole range of the type[/], zeros, denormals and 1e30 among it, the {len(kernels)} "
            f"kernels of {len(OPS)} ops stay finite and within their bounds: {sum(kernels.values()):,} values; the "
            f"worst is {worst.result} of {worst.op}.{worst.direction}, at {worst.share:.0%} of what is allowed."
        )
