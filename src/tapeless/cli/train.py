"""`tapeless train`"""

from __future__ import annotations

import os
import shutil
import sys
import time as clock
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tapeless.backends import blas
from tapeless.cli.common import Json, Seed, Threads, bars, compiling_shown, console, print_json, with_preset_fields
from tapeless.model import DEFAULT_BACKEND, Model
from tapeless.models.presets import preset
from tapeless.train.loop import Epoch, Settings, Step, final_scores
from tapeless.train.loop import train as steps_of
from tapeless.train.operations import LENGTH, TRAINING, WORDS, Split, check_fits, spell, split
from tapeless.train.run import Run, new_folder


@with_preset_fields
def train(
    name: Annotated[str, typer.Argument(metavar="[PRESET]", help="A preset that reads tokens.")] = "ops-102k",
    epochs: Annotated[int, typer.Option(help="Passes over the training split.")] = 10,
    batch: Annotated[int, typer.Option("--batch", "-B", help="Examples per step.")] = 32,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    clip: Annotated[float | None, typer.Option(help="Largest global gradient norm.")] = None,
    seed: Seed = 0,
    backend: Annotated[str, typer.Option(help="Where it runs: cpu or reference.")] = DEFAULT_BACKEND,
    threads: Threads = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; the backend's own by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/PRESET-001, -002, … by default.")] = None,
    json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Train a model on the operations task: `Max(1,6,2)` → `6`.

    Five operations over three digits: 5,000 expressions, 4,000 to train on and 1,000 held out.

    Example: tapeless train ops-102k --epochs 5 --lr 2e-3
    """
    settings = Settings(epochs, batch, lr, clip, seed)
    settings.validate(TRAINING)
    config = preset(name).override(**changes)
    check_fits(config)
    if threads is not None:
        blas.set_threads(threads)
    with compiling_shown(quiet=json) if backend == "cpu" else nullcontext():
        model = Model(config, batch=batch, time=LENGTH, backend=backend, dtype=dtype, seed=seed)
    run = Run(out or new_folder(Path("runs"), name), model, settings)
    training, validation = split(seed)
    started = clock.perf_counter()
    if not json:
        console.print(
            f"[bold]{name}[/]  {model.parameters:,} parameters, {model.backend} backend, {model.dtype}; "
            f"{len(training):,} expressions to train, {len(validation):,} held out"
        )
    history, losses = _follow(model, training, validation, settings, run, quiet=json)
    run.save_weights(model)
    last, seconds = history[-1], clock.perf_counter() - started
    if json:
        print_json(
            {
                "preset": name,
                "backend": model.backend,
                "steps": last.steps,
                "train_loss": last.train_loss,
                "train_accuracy": last.train_accuracy,
                "val_loss": last.val_loss,
                "val_accuracy": last.val_accuracy,
                "seconds": seconds,
                "run": str(run.folder),
            }
        )
    else:
        _print_result(model, validation, history, losses, seconds, run)


def _follow(
    model: Model, training: Split, validation: Split, settings: Settings, run: Run, quiet: bool
) -> tuple[list[Epoch], list[float]]:
    """Walk the training, with a progress bar for people and a line of metrics per epoch for machines."""
    history: list[Epoch] = []
    losses: list[float] = []
    columns = (
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    total = settings.epochs * (len(training) // settings.batch)
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("", total=total, epoch=1, epochs=settings.epochs, loss=float("nan"))
        for event in steps_of(model, training, validation, settings):
            if isinstance(event, Step):
                losses.append(event.loss)
                progress.update(task, advance=1, loss=event.loss, epoch=len(history) + 1)
                continue
            history.append(event)
            run.record(asdict(event))
            if not quiet:
                progress.console.print(_line(event))
    return history, losses


def _line(epoch: Epoch) -> str:
    return (
        f"epoch {epoch.number:>3}   loss {epoch.train_loss:.4f}  right {epoch.train_accuracy:7.2%}   "
        f"held out: {epoch.val_loss:.4f}  [bold]{epoch.val_accuracy:7.2%}[/]   [dim]‖d‖ {epoch.gradient_norm:.2f}[/]"
    )


def _print_result(
    model: Model, validation: Split, history: list[Epoch], losses: list[float], seconds: float, run: Run
) -> None:
    last = history[-1]
    console.print(f"\n[dim]loss over {last.steps:,} steps, from {losses[0]:.2f} to {losses[-1]:.4f}[/]")
    console.print(f"[cyan]{bars(losses, min(console.width - 2, 100))}[/]\n")
    answered = final_scores(model, validation.tokens).argmax(axis=1)
    right = [i for i in range(len(validation)) if answered[i] == validation.answers[i]]
    wrong = [i for i in range(len(validation)) if answered[i] != validation.answers[i]]
    table = Table(box=None, show_header=False, padding=(0, 2))
    for index in [*right[:5], *wrong[:5]]:
        good = answered[index] == validation.answers[index]
        mark = "[green]✓[/]" if good else f"[red]✗ it is {WORDS[validation.answers[index]]}[/]"
        table.add_row(spell(validation.tokens[index]), "=", f"[bold]{WORDS[answered[index]]}[/]", mark)
    console.print("[dim]held-out expressions, never trained on[/]")
    console.print(table)
    console.print(
        f"\n[bold green]{last.val_accuracy:.2%}[/] of {len(validation):,} held-out expressions right, "
        f"after {seconds:.1f} s. The run is in [bold]{run.folder}[/]."
    )
    # After `make train` the command is in .venv/bin and not on the PATH.
    started_as = "python -m tapeless" if sys.argv[0].endswith("__main__.py") else os.path.relpath(sys.argv[0])
    command = "tapeless" if shutil.which("tapeless") else started_as
    console.print(
        f"[dim]next:[/] {command} explain ops-102k --values   [dim]every gradient, with its norm[/]\n"
        f"      {command} check                       [dim]prove them to twelve digits[/]"
    )
