"""`tapeless check`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.backends.backend import backend_named
from tapeless.check.complex_step import TensorError, check_model
from tapeless.check.configurations import (
    CONFIGURATIONS,
    LARGER,
    Configuration,
    configurations_of,
    full_size,
    made_small,
)
from tapeless.check.everything import check_ops
from tapeless.check.finding import Finding
from tapeless.check.ops import check_op
from tapeless.check.tolerances import TOLERANCES
from tapeless.check.wiring import Wiring, check_wiring
from tapeless.cli.bugs import run_bugs
from tapeless.cli.common import Json, console, plural, print_json, table
from tapeless.cli.fields import Set, model_changes
from tapeless.cli.lockstep import check_backend
from tapeless.cli.one_op import check_named_ops
from tapeless.cli.own import check_own, is_own
from tapeless.cli.progress import one_by_one
from tapeless.cli.subject import Subject, is_run, subject
from tapeless.errors import TapelessError, unknown
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS

SHOWN = 12  # tensors in the table


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE.py:KERNEL|PRESET|RUN|OP",
            help="A kernel of yours, presets, folders of runs, or ops. Default: all presets.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="reference: gradients by complex step. cpu, cuda: every call against the reference.")
    ] = "reference",
    set_: Set = None,
    bugs: Annotated[
        bool, typer.Option("--bugs", help="Plant a dozen bugs, one after the other, and see each caught and named.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page: where the error of your kernel lies.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the cases of your kernel may take.")] = 60.0,
    json: Json = False,
) -> None:
    """Judge a kernel of yours, verify the gradients, or the kernels of a backend.

    my_kernels.py:RMSNorm is a torch.autograd.Function, module, custom op or pair of functions in a file of yours. Its
    inputs stand beside it as rms_norm_inputs, its definition as rms_norm_definition, or is named after it:
    my_kernels.py:RMSNorm:reference. Every result is compared with the definition in float64, over shapes, strides,
    dtypes and numbers; what is wrong is named, made small, and written down as a script.

    First the wiring, at full size: before anything runs, the list of calls of every preset is shown to add up every
    gradient as the chain rule has it. Then every op alone, by complex step: its backward is the derivative of its
    forward. Both together prove the whole. Small versions of every preset, every element of every weight, verify it
    once more. Without a name, every forward is compared with its definition, and every cpu kernel with the reference.

    --backend cpu or cuda compares one whole training step of every configuration with the
    reference, call by call, and reports the first result that is off; cpu kernels are tried on threads and over the
    whole range of the type, too. For a run, its own model is checked, with what it freezes. The name of an op checks
    that op alone, its mathematics and its kernels. --bugs checks the checkers.

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
    for name in names or ():
        if name not in OPS and name not in PRESETS and not is_run(name):
            raise unknown("preset or op", name, [*PRESETS, *OPS])
    ops = [name for name in names or () if name in OPS]
    if ops:
        check_named_ops(ops, backend, json, others=len(names or ()) > len(ops) or bugs or bool(set_))
        return
    if bugs:
        if names or set_ or backend != "reference":
            raise TapelessError("--bugs always plants the same bugs: leave out presets, --set and --backend.")
        run_bugs(json)
        return
    if set_ and not names:
        raise TapelessError("--set is of some model: name a preset or a run before it.")
    changes = model_changes(set_)
    seen = [subject(name, changes, batch=None, time=None, usual=(2, None)) for name in names or PRESETS]
    if backend_named(backend).name == "reference":
        _check_gradients(seen, bool(names), json)
    else:
        check_backend(backend, [each for one in seen for each in _in_lockstep(one)] if names else [], json)


def _check_gradients(seen: list[Subject], named: bool, json: bool) -> None:
    wirings = [_wiring(each) for each in one_by_one(seen, lambda each: f"wiring of {each.name}", json)]
    wired = all(wiring.ok for wiring in wirings)
    used = {op for wiring in wirings for op in wiring.ops}
    ops = [name for name, op in OPS.items() if op.SPEC.backward and (name in used or not named)]
    configurations = [each for one in seen for each in _small(one)]
    alone = [error for op in one_by_one(ops if wired else [], lambda op: f"op {op}", json) for error in check_op(op)]
    models = one_by_one(configurations if wired else [], lambda configuration: configuration.name, json)
    whole = [error for configuration in models for error in check_model(configuration)]
    findings = _findings(json) if wired and not named else None
    errors = sorted([*alone, *whole], key=lambda error: error.size, reverse=True)
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
                "findings": [str(finding) for finding in findings or ()],
                "wiring": [vars(wiring) for wiring in wirings],
                "ops": {"ops": len(ops), **_counted(alone)},
                "models": {"models": len(configurations), **_counted(whole)},
                "report": [vars(error) for error in errors],
            }
        )
    else:
        if errors and not (named and ok):
            _print_worst(errors)
        stages = [
            ("ops", "every backward is the derivative of its forward", plural(len(ops), "op"), alone),
            ("models", "the whole once more, in models made small", plural(len(configurations), "model"), whole),
        ]
        _print_stages(wirings, "model" if any(map(_own, seen)) else "preset", stages)
        _print_verdict(errors, wirings)
        if findings is not None:
            _print_findings(findings)
    if not ok:
        raise typer.Exit(1)


def _own(seen: Subject) -> bool:
    """Whether it is no preset as it is."""
    return seen.run is not None or seen.spec.preset != PRESETS[seen.name]


def _wiring(seen: Subject) -> Wiring:
    spec = seen.spec
    master, weighted = spec.precision.has_master and _own(seen), spec.class_weights is not None
    return check_wiring(seen.name, spec.preset, spec.optimizer, master=master, weighted=weighted)


def _small(seen: Subject) -> tuple[Configuration, ...]:
    if not _own(seen):
        return configurations_of(seen.name)
    return (made_small(seen.name, seen.spec.preset, seen.spec.class_weights is not None),)


def _in_lockstep(seen: Subject) -> list[Configuration]:
    if _own(seen):
        return [*_small(seen), full_size(seen.name, seen.spec.preset)]
    return [each for each in (*CONFIGURATIONS, *LARGER) if each.preset == seen.name]


def _counted(errors: list[TensorError]) -> dict[str, float | int | None]:
    worst = max((error.size for error in errors), default=None)
    return {"gradients": len(errors), "elements": sum(error.elements for error in errors), "worst": worst}


def _findings(quiet: bool) -> list[Finding]:
    """What no gradient check would see: a forward that is wrong together with its backward, the kernels of the cpu."""
    with console.status("definitions and kernels") as status:
        if quiet:
            status.stop()
        return list(check_ops())


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"[bold red]{escape(str(finding))}[/]")
    if not findings:
        console.print(
            f"[bold green]All {len(OPS)} ops are what their definitions say[/], optimizers and clipping among them, "
            f"and so are the kernels of the cpu backend."
        )


def _print_worst(errors: list[TensorError]) -> None:
    failed = [error for error in errors if not error.ok]
    rows = [
        (
            f"[{'green' if error.ok else 'bold red'}]{error.error:.1e}",
            error.tensor,
            f"{error.elements:,}",
            error.configuration,
        )
        for error in failed or errors[:SHOWN]
    ]
    console.print(table((">error", "tensor", ">elements", "configuration"), rows))
    if not failed and len(errors) > SHOWN:
        console.print(f"[dim]… and {len(errors) - SHOWN} tensors with smaller errors[/]")
    console.print()


def _print_stages(wirings: list[Wiring], what: str, stages: list[tuple[str, str, str, list[TensorError]]]) -> None:
    """What each stage proves, how much of it, and how far off the worst is."""
    gradients, calls = sum(wiring.gradients for wiring in wirings), sum(wiring.calls for wiring in wirings)
    models = f"{plural(len(wirings), what)}, {calls:,} calls, {gradients:,} gradients"
    exact = "exact" if all(wiring.ok for wiring in wirings) else "[bold red]refused[/]"
    rows: list[Any] = [("wiring", "at full size, gradients add up by the chain rule", models, exact)]
    for name, proves, of, errors in stages:
        if errors:
            worst = max(errors, key=lambda error: error.size)
            counts = f"{of}, {len(errors):,} gradients, {sum(error.elements for error in errors):,} elements"
            rows.append((name, proves, counts, f"[{'green' if worst.ok else 'bold red'}]{worst.error:.1e}[/]"))
    console.print(table(("", "proves", "of", ">worst"), rows))


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
