"""`tapeless check`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.backends.backend import backend_named
from tapeless.check.complex_step import TensorError, check_directions, check_model, check_op
from tapeless.check.configurations import (
    CONFIGURATIONS,
    LARGER,
    Configuration,
    configurations_of,
    full_size,
    made_small,
)
from tapeless.check.everything import check_everything
from tapeless.check.finding import Finding
from tapeless.check.one_op import ops_among
from tapeless.check.tolerances import TOLERANCES
from tapeless.check.wiring import Wiring, check_wiring
from tapeless.cli.bugs import run_bugs
from tapeless.cli.common import Json, console, print_json
from tapeless.cli.fields import Set, model_changes
from tapeless.cli.lockstep import check_backend
from tapeless.cli.one_op import check_ops
from tapeless.cli.own import check_own, is_own
from tapeless.cli.progress import one_by_one
from tapeless.cli.subject import Subject, subject
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS

SHOWN = 12  # tensors in the table


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.py:KERNEL|PRESET|RUN|OP …]",
            help="A kernel of yours, presets, folders of runs, or ops; all presets by default.",
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Presets at full size, one random direction per tensor.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="reference: by complex step. cpu, cuda: every call beside the reference.")
    ] = "reference",
    set_: Set = None,
    bugs: Annotated[
        bool, typer.Option("--bugs", help="Plant a dozen bugs, one after the other, and see each caught, and named.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: where the error of your kernel lies.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the cases of your kernel may take.")] = 60.0,
    json: Json = False,
) -> None:
    """Judge a kernel of yours; prove the gradients, or a backend by the reference.

    my_kernels.py:RMSNorm is a torch.autograd.Function, module, custom op or pair of functions in a file of yours. Its
    inputs stand beside it as rms_norm_inputs, its definition as rms_norm_definition, or is named after it:
    my_kernels.py:RMSNorm:reference. Every result is compared with the definition in float64, over shapes, strides,
    dtypes and numbers; what is wrong is named, made small, and written down as a script.

    First the wiring, which no size is too large for: the list of calls of every preset, as large as it is, is shown to
    add up every gradient as the chain rule has it, before anything runs. Then every op alone, by complex step: its
    backward is the derivative of its forward. Both together prove the whole; small versions of every preset, every
    element of every weight, prove it once more. Without a preset also that every forward is what its definition says,
    and the optimizer's step and the loop what theirs say. --fast takes the presets
    as they are, on a short batch (a preset of N parameters needs about 48·N bytes), by default all that stay
    under 200 million parameters. --backend cpu or cuda walks one whole training step of every configuration in lockstep
    with the reference and reports the first call whose result is off; the cpu's ops are tried on threads and over the
    whole range of the type as well. Of a run it is its own model that is proven, with what it freezes.
    --bugs checks the checkers. The name of an op proves that op alone: its mathematics and its kernels, beside the
    reference, on threads and over the whole range.

    Example: tapeless check gpt2-4x256 ops-102k
    Example: tapeless check layernorm
    Example: tapeless check my_kernels.py:RMSNorm
    """
    own = [name for name in names or () if is_own(name)]
    if own:
        if len(own) < len(names or ()) or len(own) > 1:
            raise TapelessError(f"a kernel of yours is judged alone: tapeless check {own[0]}.")
        check_own(own[0], json, html, seconds)
        return
    if html is not None:
        raise TapelessError("--html is of a kernel of yours: tapeless check my_kernels.py:RMSNorm --html page.html.")
    asked = ops_among(names or [], [*PRESETS, *(name for name in names or () if Path(name).exists())])
    if asked:
        check_ops(asked, backend, json, others=len(names or ()) > len(asked) or fast or bugs or bool(set_))
        return
    if bugs:
        if names or fast or set_ or backend != "reference":
            raise TapelessError("--bugs always plants the same bugs: leave out presets, --fast, --set and --backend.")
        run_bugs(json)
        return
    if set_ and not names:
        raise TapelessError("--set is of some model: name a preset or a run before it.")
    changes = model_changes(set_)
    seen = [subject(name, changes, batch=None, time=None, usual=(2, None)) for name in names or ()]
    chosen = [each.name for each in seen]
    if backend_named(backend).name != "reference":
        if fast:
            raise TapelessError("--fast is a mode of the complex step: leave out --fast or --backend.")
        check_backend(backend, _in_lockstep(seen), json)
        return
    wired_here: list[Subject | str] = [*seen] or list(PRESETS)
    wirings = [_wiring(each) for each in one_by_one(wired_here, lambda each: f"wiring of {_name(each)}", json)]
    if fast:
        configurations = tuple(full_size(each.name, each.spec.preset) for each in seen) or tuple(
            map(full_size, _moderate())
        )
        ops: list[str] = []
    else:
        configurations = tuple(c for each in seen for c in _small(each)) or CONFIGURATIONS
        used = {op for wiring in wirings for op in wiring.ops}
        ops = [name for name, op in OPS.items() if op.SPEC.backward and (name in used or not chosen)]
    wired = all(wiring.ok for wiring in wirings)
    alone = [error for op in one_by_one(ops if wired else [], lambda op: f"op {op}", json) for error in check_op(op)]
    prove = check_directions if fast else check_model
    models = one_by_one(configurations if wired else (), lambda configuration: configuration.name, json)
    whole = [error for configuration in models for error in prove(configuration)]
    findings = _findings(quiet=json) if wired and not fast and not chosen else []
    errors = sorted([*alone, *whole], key=_size, reverse=True)
    ok = wired and all(error.ok for error in errors) and not findings
    if json:
        print_json(
            {
                "ok": ok,
                "worst": errors[0].error if errors else None,
                "tolerance": TOLERANCES["complex step"],
                "tensors": len(errors),
                "elements": sum(error.elements for error in errors),
                "configs": len(configurations) + len(ops),
                "findings": [str(finding) for finding in findings],
                "wiring": [vars(wiring) for wiring in wirings],
                "ops": {"ops": len(ops), **_counted(alone)},
                "models": {"models": len(configurations), **_counted(whole)},
                "report": [vars(error) for error in errors],
            }
        )
    else:
        if errors and (not chosen or not ok):
            _print_worst(errors)
        _print_stages(wirings, ops, alone, configurations, whole, fast, any(map(_own, seen)))
        _print_verdict(errors, wirings)
        if errors and not fast and not chosen:
            _print_findings(findings)
    if not ok:
        raise typer.Exit(1)


def _name(seen: Subject | str) -> str:
    return seen if isinstance(seen, str) else seen.name


def _own(seen: Subject) -> bool:
    """Whether it is no preset as it is."""
    return seen.run is not None or seen.spec.preset != PRESETS[seen.name]


def _wiring(seen: Subject | str) -> Wiring:
    if isinstance(seen, str):
        return check_wiring(seen)
    spec, weighted = seen.spec, seen.spec.class_weights is not None
    return check_wiring(
        seen.name, spec.preset, spec.optimizer, master=spec.precision.has_master and _own(seen), weighted=weighted
    )


def _small(seen: Subject) -> tuple[Configuration, ...]:
    if not _own(seen):
        return configurations_of(seen.name)
    return (made_small(seen.name, seen.spec.preset, seen.spec.class_weights is not None),)


def _in_lockstep(seen: list[Subject]) -> list[Configuration]:
    """What a backend is compared on; nothing where all there is is meant."""
    found = []
    for each in seen:
        if _own(each):
            found += [*_small(each), full_size(each.name, each.spec.preset)]
        else:
            found += [c for c in (*CONFIGURATIONS, *LARGER) if c.preset == each.name]
    return found


def _size(error: TensorError) -> float:
    return error.error if error.error == error.error else float("inf")  # NaN is as wrong as can be


def _counted(errors: list[TensorError]) -> dict[str, float | int | None]:
    worst = max(map(_size, errors), default=None)
    return {"gradients": len(errors), "elements": sum(error.elements for error in errors), "worst": worst}


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


def _print_worst(errors: list[TensorError]) -> None:
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
    console.print()


def _print_stages(
    wirings: list[Wiring],
    ops: list[str],
    alone: list[TensorError],
    configurations: tuple[Configuration, ...],
    whole: list[TensorError],
    fast: bool,
    own: bool,
) -> None:
    """What each stage proves, how much of it, and how far off the worst is."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("", "proves", "of", "worst"):
        table.add_column(column, justify="right" if column == "worst" else "left")
    gradients, calls = sum(wiring.gradients for wiring in wirings), sum(wiring.calls for wiring in wirings)
    table.add_row(
        "wiring",
        "at full size, gradients add up by the chain rule",
        f"{_many(len(wirings), 'model' if own else 'preset')}, {calls:,} calls, {gradients:,} gradients",
        "exact" if all(wiring.ok for wiring in wirings) else "[bold red]refused[/]",
    )
    for name, what, of, errors in (
        ("ops", "every backward is the derivative of its forward", _many(len(ops), "op"), alone),
        (
            "models",
            "the whole, one random direction per tensor" if fast else "the whole once more, in models made small",
            _many(len(configurations), "model"),
            whole,
        ),
    ):
        if errors:
            elements, worst = sum(error.elements for error in errors), max(errors, key=_size)
            colour = "green" if worst.ok else "bold red"
            counts = f"{of}, {len(errors):,} gradients, {elements:,} elements"
            table.add_row(name, what, counts, f"[{colour}]{worst.error:.1e}[/]")
    console.print(table)


def _many(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _print_verdict(errors: list[TensorError], wirings: list[Wiring]) -> None:
    tolerance, failed = TOLERANCES["complex step"], [error for error in errors if not error.ok]
    refused = [wiring for wiring in wirings if not wiring.ok]
    for wiring in refused:
        console.print(f"\n[bold red]{wiring.preset} is wired wrongly[/]: {escape(wiring.refusal)}")
    if failed:
        console.print(
            f"\n[bold red]{len(failed)} of {len(errors)} gradients are wrong[/]: "
            f"their relative error is above {tolerance:g}."
        )
    if not refused and not failed:
        worst = f"worst relative error {errors[0].error:.1e}, allowed {tolerance:g}"
        console.print(f"\n[bold green]All {len(errors):,} gradients hold[/]: {worst}.")
