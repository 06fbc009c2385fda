"""`tapeless check`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tapeless.backends.backend import backend_named
from tapeless.check.complex_step import TensorError, check_directions, check_model, check_op
from tapeless.check.configurations import CONFIGURATIONS, Configuration, configurations_of, full_size
from tapeless.check.everything import check_everything
from tapeless.check.finding import Finding
from tapeless.check.tolerances import TOLERANCES
from tapeless.cli.bugs import run_bugs
from tapeless.cli.common import Json, console, print_json
from tapeless.cli.lockstep import check_backend
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.presets import PRESETS, preset
from tapeless.ops import OPS

SHOWN = 12  # tensors in the table


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PRESET …]", help="Presets to prove; all by default.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Presets at full size, one random direction per tensor.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="reference: by complex step. cpu: every call beside the reference.")
    ] = "reference",
    bugs: Annotated[
        bool, typer.Option("--bugs", help="Plant every bug of the catalogue and see it caught, and named.")
    ] = False,
    json: Json = False,
) -> None:
    """Prove the gradients by complex step, or a backend by the reference.

    Small versions of every preset, every element of every weight, and every op alone; then that every forward is what
    its definition says, and the optimizer's step and the loop what theirs say. --fast takes the presets
    as they are, on a short batch (a preset of N parameters needs about 48·N bytes), by default all that stay
    under 200 million parameters. --backend cpu walks one whole training step of every configuration in lockstep with
    the reference and reports the first call whose result is off, and tries every op over the whole range of the type.
    --bugs checks the checkers.

    Example: tapeless check gpt2-4x256 ops-102k
    """
    if bugs:
        if names or fast or backend != "reference":
            raise TapelessError("--bugs runs the whole catalogue: leave out presets, --fast and --backend.")
        run_bugs(json)
        return
    chosen = [preset(name).name for name in names or ()]
    if backend_named(backend).name != "reference":
        if fast:
            raise TapelessError("--fast is a mode of the complex step: leave out --fast or --backend.")
        check_backend(backend, chosen, json)
        return
    if fast:
        configurations = tuple(full_size(name) for name in chosen or _moderate())
        ops: list[str] = []
    else:
        configurations = tuple(c for name in chosen for c in configurations_of(name)) or CONFIGURATIONS
        ops = [] if chosen else [name for name, op in OPS.items() if op.SPEC.backward]
    errors = _run(ops, configurations, fast, quiet=json)
    findings = _findings(quiet=json) if ops else []
    errors.sort(key=lambda error: error.error if error.error == error.error else float("inf"), reverse=True)
    ok = all(error.ok for error in errors) and not findings
    if json:
        print_json(
            {
                "ok": ok,
                "worst": errors[0].error,
                "tolerance": TOLERANCES["complex step"],
                "tensors": len(errors),
                "elements": sum(error.elements for error in errors),
                "configs": len(configurations) + len(ops),
                "findings": [str(finding) for finding in findings],
                "report": [vars(error) for error in errors],
            }
        )
    else:
        _print(errors, len(configurations) + len(ops), fast)
        if ops:
            _print_findings(findings)
    if not ok:
        raise typer.Exit(1)


def _findings(quiet: bool) -> list[Finding]:
    """What is not a gradient, and no gradient check would see: a forward that is wrong together with its backward, an
    optimizer's step, the loop, the kernels of the cpu backend."""
    with console.status("definitions, steps, loop and kernels") as status:
        if quiet:
            status.stop()
        return list(check_everything())


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"[bold red]{escape(str(finding))}[/]")
    if not findings:
        console.print(
            f"[bold green]All {len(OPS)} ops are what their definitions say[/], and so are the optimizers' steps, "
            f"clipping, accumulation and the loop."
        )


def _moderate() -> list[str]:
    """The presets that a fast check of everything takes at full size."""
    counted = {name: transformer.evaluation(config, 1, 1).parameters for name, config in PRESETS.items()}
    return [name for name, parameters in counted.items() if parameters < 200_000_000]


def _run(ops: list[str], configurations: tuple[Configuration, ...], fast: bool, quiet: bool) -> list[TensorError]:
    errors: list[TensorError] = []
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("", total=len(ops) + len(configurations))
        for name in ops:
            progress.update(task, description=f"op {name}")
            errors.extend(check_op(name))
            progress.advance(task)
        for configuration in configurations:
            progress.update(task, description=configuration.name)
            errors.extend(check_directions(configuration) if fast else check_model(configuration))
            progress.advance(task)
    return errors


def _print(errors: list[TensorError], configurations: int, fast: bool) -> None:
    table = Table(box=None, header_style="dim")
    table.add_column("error", justify="right")
    table.add_column("tensor")
    table.add_column("elements", justify="right")
    table.add_column("configuration")
    failed = [error for error in errors if not error.ok]
    for error in failed or errors[:SHOWN]:
        colour = "green" if error.ok else "bold red"
        table.add_row(f"[{colour}]{error.error:.1e}", error.tensor, f"{error.elements:,}", error.configuration)
    console.print(table)
    if not failed and len(errors) > SHOWN:
        console.print(f"[dim]… and {len(errors) - SHOWN} tensors with smaller errors[/]")
    elements = sum(error.elements for error in errors)
    how = "one random direction per tensor" if fast else f"{elements:,} elements, each by itself"
    places = "1 configuration" if configurations == 1 else f"{configurations} configurations"
    tolerance = TOLERANCES["complex step"]
    if failed:
        console.print(
            f"\n[bold red]{len(failed)} of {len(errors)} gradients are wrong[/]: "
            f"their relative error is above {tolerance:g}."
        )
    else:
        console.print(
            f"\n[bold green]All {len(errors)} gradients hold[/] in {places}: {how}; "
            f"worst relative error {errors[0].error:.1e}, allowed {tolerance:g}."
        )
