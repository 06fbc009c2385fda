"""`tapeless train`"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.backends.backend import backend_named, gemm_library
from tapeless.cli.common import Json, bars, console, own_command, print_json, quoted, table, warn
from tapeless.cli.display import Display
from tapeless.cli.find_lr import print_found, refuse_beside
from tapeless.cli.options import take_threads
from tapeless.cli.output import go_on_unread
from tapeless.cli.progress import Report, work_shown
from tapeless.cli.settings import with_settings
from tapeless.errors import TapelessError
from tapeless.files.disk import retried
from tapeless.files.plain import read_toml
from tapeless.labelling.run import EVERY_KIND
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.task import Ended, Farewell
from tapeless.tasks.text import continuation
from tapeless.train.find_rate import find_rate
from tapeless.train.loop import Evaluated, Event
from tapeless.train.report import measured, take_best
from tapeless.train.run import NumberedFolder, Run, open_run
from tapeless.train.session import Session
from tapeless.train.session import resume as resume_session
from tapeless.train.session import start as start_session
from tapeless.train.settings import naming_its_file, read_request

MARKS = {"✓": "green", "✗": "red"}


@with_settings()
def train(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE.toml",
            help="What to train; `tapeless presets` lists the presets. Default: ops-102k, with --data gpt2-4x256.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run from its newest checkpoint.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option("--init-from", metavar="RUN", help="Start from the weights of this run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/PRESET-001, -002, …")] = None,
    find_lr: Annotated[
        bool,
        typer.Option(
            "--find-lr",
            help="Only look for a learning rate, by short trainings; --out FILE.svg draws the curve.",
        ),
    ] = False,
    json: Json = False,
    *,
    changes: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Train a model, on the operations task (`Max(1,6,2)` → `6`) or on text.

    A run is a folder with its configuration, metrics and checkpoints. Ctrl-C saves and ends; --resume continues.

    Example: tapeless train gpt2-4x256 --data stdlib --steps 500 --set layers=2 --set channels=128
    """
    go_on_unread()
    if settings.get("threads") is not None and settings.get("backend") in (None, DEFAULT_BACKEND):
        take_threads(DEFAULT_BACKEND, settings["threads"])
    if settings.get("products") is not None and settings.get("backend") in (None, DEFAULT_BACKEND):
        gemm_library(backend_named(DEFAULT_BACKEND), settings["products"])
    if find_lr:
        refuse_beside(resume, out)
        with TemporaryDirectory(prefix="tapeless-") as folder:
            session = _assemble(name, None, base, Path(folder) / "run", json, changes, settings)
            try:
                with work_shown(json) as progress:
                    found = find_rate(session.trainer, progress)
            finally:
                session.run.release()
        print_found(found, out, json)
        return
    session = _assemble(name, resume, base, out, json, changes, settings)
    run_session(session, "train", json, partial(_document, session))


def _assemble(
    name: str | None,
    resume: Path | None,
    base: Path | None,
    out: Path | None,
    quiet: bool,
    changes: dict[str, Any],
    settings: dict[str, Any],
) -> Session:
    if resume is not None and (base is not None or out is not None):
        raise TapelessError(
            "--resume goes on in the same folder with the same weights: leave out --init-from and --out."
        )
    if name is not None and (resume is not None or (base is not None and not name.endswith(".toml"))):
        option = "--init-from" if resume is None else "--resume"
        raise TapelessError(f"{option} brings the model of its run, so {name} would have no effect: leave it out.")
    if resume is not None:
        with work_shown(quiet):
            session = resume_session(resume, changes, settings, EVERY_KIND)
        told = f"goes on after update {session.trainer.step:,} of {session.trainer.steps:,}"
    else:
        name = name or ("ops-102k" if settings.get("data", "operations") == "operations" else "gpt2-4x256")
        asked = read_request(name)
        started_from = open_run(base) if base else None
        if started_from is not None and name.endswith(".toml"):
            _refuse_other_preset(Path(name), started_from)
        stem = Path(name).stem if name.endswith(".toml") else name
        folder = out or NumberedFolder(Path("runs"), stem if base is None else f"{base.resolve().name}-tuned")
        with naming_its_file(name, {*changes, *settings}):
            request = asked.override(changes, settings)
            with work_shown(quiet) as progress:
                session = start_session(request, folder, base=started_from, progress=progress)
        told = f"{session.trainer.steps:,} updates of {session.request.settings.batch} sequences"
        if session.trainer.settings.accumulate > 1:
            told += f" × {session.trainer.settings.accumulate}"
    if not quiet:
        announce(session, told)
    return session


def _refuse_other_preset(file: Path, base: Run) -> None:
    """A training file that names another preset than the run whose weights are taken."""
    theirs = base.request().preset
    named = read_toml(file).get("preset", theirs)
    if named != theirs:
        raise TapelessError(
            f"{file} names the preset {named}, and {base.folder} brings the model of {theirs}: leave it out."
        )


def announce(session: Session, told: str) -> None:
    model = session.model
    trained = sum(weight.elements for weight in model.program.trained)
    share = "" if trained == model.parameters else f" ({trained:,} trained)"
    about = f"{model.parameters:,} parameters{share}, {model.backend} backend, {model.precision.described()}"
    console.print(f"[bold]{escape(model.preset.name)}[/]  {about}; {session.trainer.task.summary()}; {told}")
    warn(session.messages)


def run_session(
    session: Session, subcommand: str, json: bool, document: Callable[[Display, float], dict[str, Any]]
) -> None:
    """Train to the end, and say how it went: to machines by the document."""
    started = clock.perf_counter()
    status = follow(session, shown=not json)
    seconds = clock.perf_counter() - started
    if json:
        print_json(document(status, seconds))
    elif status.code:
        console.print(f"{escape(status.reason)} after update {session.trainer.step:,}. Saved. Go on with:")
        words = f"{own_command()} {subcommand} --resume {quoted(session.run.folder)}"
        console.print(words, soft_wrap=True, markup=False)
    else:
        print_farewell(session, status, seconds)
    if status.code:
        raise typer.Exit(status.code)


def follow(session: Session, shown: bool) -> Display:
    prompt = session.trainer.settings.sample
    with Display(session, shown) as display:

        def sample(event: Event) -> None:
            if isinstance(event, Evaluated) and prompt is not None:
                tokenizer = session.trainer.task.tokenizer
                written = continuation(session.model, tokenizer, prompt, 48, seed=session.trainer.step)
                display.say(f"[cyan]{escape(written)}[/]")

        display.reason = session.train(display.show, sample, stopping=display.stopping).reason
    return display


def _document(session: Session, status: Display, seconds: float) -> dict[str, Any]:
    judged = status.evaluations[-1].measured if status.evaluations else measured(session.run)
    found = vars(judged) if judged else dict.fromkeys(("loss", "accuracy", "train_loss", "train_accuracy"))
    last = status.losses[-1] if status.losses else None
    return {
        "preset": session.request.preset,
        "backend": session.model.backend,
        "precision": session.model.precision.name,
        "frozen_precision": session.model.preset.frozen_precision,
        "steps": session.trainer.step,
        "train_loss": last if found["train_loss"] is None else found["train_loss"],
        "train_accuracy": found["train_accuracy"],
        "val_loss": found["loss"],
        "val_accuracy": found["accuracy"],
        "val_cross_entropy": found.get("cross_entropy"),
        "best_val_loss": session.trainer.best,
        "stopped": status.reason,
        "messages": session.messages,
        "seconds": seconds,
        "run": str(session.run.folder),
    }


def print_farewell(session: Session, status: Display, seconds: float) -> None:
    """How it went, what the task has to say, and what can be done next."""
    console.print(f"[dim]{escape(status.reason)}[/]")
    if len(status.losses) > 1:
        losses = status.losses
        console.print(f"\n[dim]loss over {len(losses):,} steps, from {losses[0]:.2f} to {losses[-1]:.4f}[/]")
        console.print(f"[cyan]{bars(losses)}[/]\n")
    step, task = session.trainer.step, session.trainer.task
    if task.shows_best:
        step, messages = take_best(session)
        warn(messages)
    with work_shown(False) as progress:
        ended = _ended(session, step, progress)
        said = retried(lambda: task.farewell(ended))
    _print_said(said)
    found = measured(session.run, step)
    if said.result:
        which = ended.weights if task.shows_best else "the last weights"
        console.print(f"[bold green]{escape(said.result)}[/], by {which}, after {seconds:.1f} s.")
    elif found and found.accuracy is not None:
        right = f"[bold green]{found.accuracy:.2%}[/] of what was held out is right"
        console.print(f"{right}, by {ended.weights}, after {seconds:.1f} s.")
    elif found:
        console.print(f"held-out loss [bold green]{found.loss:.4f}[/], of {ended.weights}, after {seconds:.1f} s.")
    beside = f"; {said.beside}" if said.beside else ""
    console.print(f"The run is in [bold]{escape(str(session.run.folder))}[/]{beside}.", soft_wrap=True)
    doctor = (f"{ended.command} doctor {ended.spelled}", "how the training went, in plain words")
    explore = (f"{ended.command} explore {ended.spelled}", "see it in the browser: gradients by depth and step")
    _print_next([doctor, explore, *said.next])


def _ended(session: Session, step: int, progress: Report) -> Ended:
    trainer, folder = session.trainer, session.run.folder
    return Ended(
        session.model,
        step,
        trainer.settings.lr,
        trainer.settings.sample,
        session.request.preset,
        folder,
        spelled=quoted(folder),
        command=own_command(),
        progress=progress,
    )


def _print_said(said: Farewell) -> None:
    if said.title:
        console.print(f"[dim]{escape(said.title)}[/]")
    if said.rows:
        headings = said.headings or ("",) * len(said.rows[0])
        marked = [
            heading if not number else f">{heading}" if heading else "" for number, heading in enumerate(headings)
        ]
        shown = table(marked, [[_marked(cell) for cell in row] for row in said.rows])
        if not said.headings:
            shown.padding, shown.pad_edge = (0, 2), True
        console.print(shown)
        console.print()
    if said.text:
        console.print(f"[cyan]{escape(said.text)}[/]\n")
    if said.remark:
        console.print(f"[dim]{escape(said.remark)}[/]")
    if said.warning:
        console.print(f"[yellow]{escape(said.warning)}[/]", soft_wrap=True)


def _marked(cell: str) -> str:
    return f"[{MARKS[cell[:1]]}]{cell}[/]" if cell[:1] in MARKS else escape(cell)


def _print_next(lines: list[tuple[str, str]]) -> None:
    width = max(len(line) for line, _ in lines)
    beside = 9 + width + max(len(what) for _, what in lines) <= console.width
    for index, (line, what) in enumerate(lines):
        start = "next:" if index == 0 else "     "
        if beside:
            console.print(f"[dim]{start}[/] {escape(f'{line:<{width}}')}   [dim]{what}[/]")
        else:
            console.print(f"[dim]{start} {what}:[/]")
            console.print(line, soft_wrap=True, markup=False)
