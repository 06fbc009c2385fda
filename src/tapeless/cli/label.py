"""`tapeless label`: train a model that labels every position of a signal, label with it, and a demonstration."""

from __future__ import annotations

import time as clock
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.cli.common import Json, Threads, compiling_shown, console, print_json, take_threads, with_flowing_help
from tapeless.cli.fields import Set, model_changes, with_default
from tapeless.cli.output import go_on_unread
from tapeless.cli.paths import with_paths
from tapeless.cli.train import (
    Status,
    announce,
    follow,
    preparing_shown,
    print_farewell,
    print_stopped,
)
from tapeless.errors import TapelessError
from tapeless.files.disk import retried
from tapeless.labelling import run
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.output import CODING
from tapeless.labelling.output import open_labelling
from tapeless.labelling.report import plural
from tapeless.labelling.signal.wavelet import SCALES
from tapeless.labelling.source import make_source
from tapeless.step import DEFAULT_BACKEND
from tapeless.train.run import NumberedFolder, making
from tapeless.train.session import Session
from tapeless.train.settings import Settings, usual_settings

label = typer.Typer(
    help="Label every position of a signal: genes in a genome, or classes of your own.", no_args_is_help=True
)

DEMO_STEPS = 2000
USUAL_SCALES = ",".join(f"{each:g}" for each in SCALES)

Fasta = Annotated[Path | None, typer.Option(help="A genome, plain or gzip.")]
Several = Annotated[list[Path] | None, typer.Option(help="A genome, plain or gzip; can be repeated.")]
Signal = Annotated[Path | None, typer.Option(help="A signal: a .npy file of numbers.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-001, -002, … by default.")]


def _option(name: str, text: str, *flags: str) -> Any:
    """An option of a setting, with its default."""
    return typer.Option(*flags, help=with_default(text, usual_settings(name, [run.KIND])))


@label.command()
@with_paths
@with_flowing_help
def train(
    fasta: Several = None,
    gff: Annotated[list[Path] | None, typer.Option(help="Its genes in GFF3; one for each --fasta.")] = None,
    feature: Annotated[str | None, typer.Option(help="What to find; CDS by default, or exon.")] = None,
    genetic_code: Annotated[int | None, typer.Option(help="By its NCBI number. Default: 1.")] = None,
    start_codons: Annotated[str | None, typer.Option(help="Codons that genes begin with. Default: ATG.")] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="A sequence, or a FASTA file's name, to hold out; can be repeated.")
    ] = None,
    signal: Signal = None,
    labels: Annotated[Path | None, typer.Option(help="Its classes, 0, 1, …, −1 where unknown: .npy.")] = None,
    scales: Annotated[str | None, typer.Option(help=f"Periods in samples. Default: {USUAL_SCALES}.")] = None,
    validation: Annotated[float | None, _option("validation", "Share at the end that is held out.")] = None,
    batch: Annotated[int | None, _option("batch", "Windows at a time.", "--batch", "-B")] = None,
    time: Annotated[int | None, _option("time", "Positions per window.", "--time", "-T")] = None,
    steps: Annotated[int | None, _option("steps", "Updates.")] = None,
    epochs: Annotated[float | None, _option("epochs", "Passes over the data, instead of steps.")] = None,
    lr: Annotated[float | None, _option("lr", "The highest learning rate.")] = None,
    seed: Annotated[int | None, _option("seed", "Seed of weights and data.")] = None,
    threads: Threads = None,
    backend: Annotated[
        str | None, _option("backend", "cpu, cuda or reference; auto takes a GPU where there is one.")
    ] = None,
    set_: Set = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; only --steps may change.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Learn to label, and score what was held out.

    Ctrl-C saves and leaves; --resume goes on. The run gets scores.json and precision-recall.svg.

    Example: tapeless label train --fasta genome.fa --gff genes.gff3 --held-out chr4
    """
    settings = _given(
        validation=validation,
        batch=batch,
        time=time,
        steps=steps,
        epochs=epochs,
        lr=lr,
        seed=seed,
        threads=threads,
        backend=backend,
    )
    model = model_changes(set_)
    named = _given(
        fasta=fasta,
        gff=gff,
        feature=feature,
        genetic_code=genetic_code,
        start_codons=start_codons,
        held_out=held_out,
        signal=signal,
        labels=labels,
        scales=scales,
        out=out,
    )
    take_threads(backend or DEFAULT_BACKEND, threads)
    began = clock.perf_counter()
    if resume is not None:
        if named:
            raise TapelessError(
                f"--resume goes on with what it has: leave out --{next(iter(named)).replace('_', '-')}."
            )
        with compiling_shown(json):
            session = run.resume(resume, model, settings)
    else:
        source = make_source(
            fasta=fasta or (),
            gff=gff or (),
            feature=feature,
            held_out=held_out or (),
            signal=signal,
            labels=labels,
            scales=SCALES if scales is None else _numbers(scales),
            code=_code(genetic_code, start_codons),
        )
        with making(out or NumberedFolder(Path("runs"), "label")) as made, compiling_shown(json):
            session = run.start(made, source, Settings(**settings), model)
    _train(session, began, json)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


def _code(number: int | None, starts: str | None) -> GeneticCode | None:
    if number is None and starts is None:
        return None
    codons = GeneticCode().starts if starts is None else tuple(starts.upper().replace("U", "T").split(","))
    return GeneticCode(1 if number is None else number, codons)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise TapelessError(
            f"--scales must be numbers with commas between them, such as 3,4,5, not {text!r}."
        ) from None


def _train(session: Session, began: float, json: bool) -> None:
    go_on_unread()
    if not json:
        announce(session, f"{session.trainer.steps - session.trainer.step:,} updates of {session.model.batch} windows")
    status = follow(session, shown=not json)
    if json:
        print_json(_document(session, status, began))
    elif status.code:
        print_stopped(session, status, "label train")
    else:
        print_farewell(session, status, clock.perf_counter() - began)
    if status.code:
        raise typer.Exit(status.code)


def _document(session: Session, status: Status, began: float) -> dict[str, Any]:
    folder, task = session.run.folder, session.trainer.task
    about = {"run": str(folder), "steps": session.trainer.step, "stopped": status.reason}
    if status.code:
        return about
    assert isinstance(task, run.LabellingTask)  # what this command begins, and resumes
    report = retried(lambda: task.report(session.model, folder))
    times = {"seconds": clock.perf_counter() - began, "cpu_seconds": clock.process_time()}
    return {**about, **times, **report.document()}


@label.command()
@with_paths
@with_flowing_help
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `label train`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Begin of the files' names; of a signal, the .npy file.")],
    fasta: Fasta = None,
    signal: Signal = None,
    threshold: Annotated[
        float | None, typer.Option(help="Least probability of what is found; by default what training chose.")
    ] = None,
    exclude: Annotated[Path | None, typer.Option(help="Regions in BED where nothing is found.")] = None,
    soft_masked: Annotated[bool, typer.Option("--soft-masked", help="Find nothing in lower case.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Label a genome or a signal of any length with a trained run.

    Of a genome: OUT.gff3 with what was found, OUT.plus.bedgraph and OUT.minus.bedgraph with a probability per base; of
    genes OUT.gtf, OUT.bed and proteins in OUT.faa, too.
    Of a signal: an array (samples, classes) of probabilities.

    Example: tapeless label predict runs/label-001 --fasta other.fa -o other
    """
    take_threads(DEFAULT_BACKEND, threads)
    labelling = open_labelling(
        folder,
        fasta=fasta,
        signal=signal,
        out=out,
        threshold=threshold,
        force=force,
        exclude=exclude,
        masked=soft_masked,
    )
    paths, began = labelling.paths, clock.perf_counter()
    with preparing_shown(json) as progress:
        with compiling_shown(json):
            model, messages = labelling.model()
        for message in messages:
            typer.echo(message, err=True)
        found = labelling.write(model, progress)
    if json:
        print_json({**found, "files": [str(path) for path in paths], "seconds": clock.perf_counter() - began})
    else:
        feature = str(found.get("feature"))
        names = {"stretches": "genes" if feature == CODING else plural(feature)}
        counted = ", ".join(f"{found[name]:,} {names.get(name, name)}" for name in found if type(found[name]) is int)
        console.print(f"{counted}, after {clock.perf_counter() - began:.1f} s:")
        for path in paths:
            console.print(f"  {escape(str(path))}", soft_wrap=True)


@label.command()
@with_paths
@with_flowing_help
def demo(
    bases: Annotated[int, typer.Option(help="Bases in all four chromosomes.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Updates.")] = DEMO_STEPS,
    seed: Annotated[int, typer.Option(help="Seed of genome and weights.")] = 0,
    threads: Threads = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Make up a genome, learn its genes on three chromosomes, and find those of the fourth.

    Beside the model's scores stand those of simple rules, learned from the same chromosomes.
    """
    take_threads(DEFAULT_BACKEND, threads)
    began = clock.perf_counter()
    with making(out or NumberedFolder(Path("runs"), "label-demo")) as made, compiling_shown(json):
        session = run.start_demo(made, bases, Settings(steps=steps, seed=seed, threads=threads))
    _train(session, began, json)
    if not json:
        held_out = ", ".join(run.DEMO_HELD_OUT)
        console.print(f"Its genes on {held_out} are in {escape(str(made.folder / 'held-out.gff3'))}.")
