"""`tapeless check --backend`: a backend beside the reference, call by call."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.backends.backend import backend_named, thread_count
from tapeless.check.configurations import CONFIGURATIONS, LARGER, Configuration
from tapeless.check.finding import Finding
from tapeless.check.lockstep import Difference, lockstep, pair
from tapeless.check.ops import ops_alone
from tapeless.check.ranges import RangeError, range_errors
from tapeless.check.threads import check_on_threads
from tapeless.cli.common import console, print_json
from tapeless.cli.progress import one_by_one
from tapeless.errors import NotYetError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops import OPS

SHOWN = 12
Found = list[tuple[Configuration, Difference]]


def check_backend(backend: str, asked: list[Configuration], json: bool) -> None:
    """On the configurations that are `asked` for, or on all and every op alone."""
    chosen = asked or [*CONFIGURATIONS, *LARGER]
    alone = [] if asked else [(Configuration(f"op {d.call.op}", ""), d) for d in ops_alone(backend)]
    models = one_by_one(chosen, lambda configuration: configuration.name, json)
    found, left_out = alone, []
    for each in models:
        try:
            found += [(each, difference) for difference in lockstep(*pair(each, backend))]
        except NotYetError as error:
            if asked:
                raise
            left_out.append((each.name, str(error)))
    kind = backend_named(backend)
    # These two look at kernels that have this machine's threads and memory.
    ops = [] if asked or thread_count(kind) is None else list(OPS)
    on_threads = one_by_one(ops, lambda name: f"{name} on threads", json)
    races = [finding for name in on_threads for finding in check_on_threads(name)]
    found.sort(key=lambda pair: -_share(pair[1]))
    broken = _first_broken(found)
    over_the_range = one_by_one(ops, lambda name: f"{name} over the whole range", json)
    ranges = [error for name in over_the_range for error in range_errors(name, kind)]
    outside = [error for error in ranges if not error.ok]
    if json:
        print_json(
            {
                "ok": not broken and not races and not outside,
                "backend": backend,
                "worst": found[0][1].error,
                "worst_share_of_tolerance": _share(found[0][1]),
                "tensors": len(found),
                "elements": sum(_elements(difference) for _, difference in found),
                "configs": len(chosen) + len({configuration.name for configuration, _ in alone}),
                "broken": [
                    *(f"{configuration.name}: {difference}" for configuration, difference in broken),
                    *map(str, outside),
                ],
                "ranges": [vars(error) for error in ranges],
                "threads": [str(finding) for finding in races],
                "left_out": [name for name, _ in left_out],
            }
        )
    else:
        _print(backend, found, broken, len({configuration.name for configuration, _ in found}))
        if left_out:
            console.print(f"[yellow]Left out: {', '.join(name for name, _ in left_out)}: {left_out[0][1]}[/]")
        if ops:
            _print_on_threads(races)
        _print_ranges(ranges, outside)
    if broken or races or outside:
        raise typer.Exit(1)


def _print_on_threads(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"[bold red]{escape(str(finding))}[/]")
    if findings:
        return
    if cpu_kernels.cores() == 1:
        console.print("[yellow]There is one core: what its kernels do on threads could not be tried.[/]")
    else:
        console.print(
            f"[bold green]No two threads meet[/]: all {len(OPS)} ops at sizes that thread, in every order of their "
            f"parallel loops, and again and again."
        )


def _first_broken(found: Found) -> Found:
    """The first call that is off, per configuration: one is enough to start with."""
    first: dict[str, tuple[Configuration, Difference]] = {}
    for configuration, difference in found:
        held = first.get(configuration.name)
        if not difference.ok and (held is None or difference.number < held[1].number):
            first[configuration.name] = (configuration, difference)
    return list(first.values())


def _share(difference: Difference) -> float:
    share = difference.error / difference.tolerance
    return share if share == share else float("inf")  # NaN is as wrong as can be


def _elements(difference: Difference) -> int:
    size = 1
    for axis in difference.call[difference.argument].shape:
        size *= axis
    return size


def _print(backend: str, found: Found, broken: Found, configurations: int) -> None:
    for configuration, difference in broken:
        console.print(f"[bold red]{configuration.name}[/]: {difference}", markup=True)
    if broken:
        console.print(f"\n[bold red]{len(broken)} of {configurations} configurations break[/]: see the calls above.")
        return
    table = Table(box=None, header_style="dim")
    for column in ("of allowed", "error", "call", "result", "configuration"):
        table.add_column(column, justify="right" if column in ("of allowed", "error") else "left")
    for configuration, difference in found[:SHOWN]:
        table.add_row(
            f"{_share(difference):.0%}",
            f"{difference.error:.1e}",
            difference.call.title,
            difference.argument,
            configuration.name,
        )
    console.print(table)
    console.print(
        f"\n[bold green]The {backend} backend agrees with the reference[/]: {len(found):,} results of single calls in "
        f"{configurations} configurations, each within its tolerance."
    )


def _print_ranges(ranges: list[RangeError], outside: list[RangeError]) -> None:
    for error in outside:
        console.print(f"[bold red]{error.op}[/]: {escape(str(error))}")
    if ranges and not outside:
        kernels = {(error.op, error.direction): error.values for error in ranges}
        worst = max(ranges, key=lambda error: error.share)
        console.print(
            f"[bold green]Over the whole range of the type[/], zeros, denormals and 1e30 among it, the {len(kernels)} "
            f"kernels of {len(OPS)} ops stay finite and within their bounds: {sum(kernels.values()):,} values; the "
            f"worst is {worst.result} of {worst.op}.{worst.direction}, at {worst.share:.0%} of what is allowed."
        )
