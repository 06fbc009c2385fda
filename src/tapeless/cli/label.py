"""`tapeless label`: train a model that labels every position of a signal, label with it, and a demonstration."""

from __future__ import annotations

import time as clock
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.cli.commands import Command, Commands, prepared
from tapeless.cli.common import Json, Out, console, print_json
from tapeless.cli.display import Display
from tapeless.cli.options import Threads, take_threads
from tapeless.cli.output import go_on_unread
from tapeless.cli.progress import work_shown
from tapeless.cli.settings import with_settings
from tapeless.cli.train import announce, run_session
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
from tapeless.train.settings import Settings

label = typer.Typer(
    cls=Commands, help="Label every position of a signal: genes in a genome, or your own classes.", no_args_is_help=True
)

DEMO_STEPS = 2000
TAKEN = ("validation", "batch", "time", "steps", "epochs", "lr", "seed", "backend", "threads")  # of the settings
USUAL_SCALES = ",".join(f"{each:g}" for each in SCALES)

Fasta = Annotated[Path | None, typer.Option(metavar="FILE.fa", help="A genome, plain or gzip.")]
Several = Annotated[list[Path] | None, typer.Option(metavar="FILE.fa", help="A genome, plain or gzip; repeatable.")]
Signal = Annotated[Path | None, typer.Option(metavar="FILE.npy", help="A signal: an array of numbers.")]


@label.command(cls=Command)
@prepared
@with_settings(TAKEN, run.KIND)
def train(
    fasta: Several = None,
    gff: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.gff3", help="Its genes; one for each --fasta.")
    ] = None,
    feature: Annotated[str | None, typer.Option(help="What to find: CDS or exon. Default: CDS.")] = None,
    genetic_code: Annotated[int | None, typer.Option(help="By its NCBI number. Default: 1.")] = None,
    start_codons: Annotated[str | None, typer.Option(help="Codons that genes begin with. Default: ATG.")] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="A sequence, or a FASTA file's name, for validation; repeatable.")
    ] = None,
    signal: Signal = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Its classes, 0, 1, …; −1 is unknown.")
    ] = None,
    scales: Annotated[str | None, typer.Option(help=f"Periods in samples. Default: {USUAL_SCALES}.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run; only --steps may change.")
    ] = None,
    out: Out = None,
    json: Json = False,
    *,
    changes: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Train a model to label, and score it on validation data.

    Ctrl-C saves and ends; --resume continues. The run gets scores.json and precision-recall.svg.

    Example: tapeless label train --fasta genome.fa --gff genes.gff3 --held-out chr4
    """
    data: dict[str, Any] = {
        "fasta": fasta,
        "gff": gff,
        "feature": feature,
        "held_out": held_out,
        "signal": signal,
        "labels": labels,
    }
    coded = {"genetic_code": genetic_code, "start_codons": start_codons}
    named = [name for name, value in {**data, **coded, "scales": scales, "out": out}.items() if value]
    take_threads(settings.get("backend", DEFAULT_BACKEND), settings.get("threads"))
    began = clock.perf_counter()
    if resume is not None:
        if named:
            raise TapelessError(f"--resume goes on with what it has: leave out --{named[0].replace('_', '-')}.")
        with work_shown(json):
            session = run.resume(resume, changes, settings)
    else:
        data |= {name: data[name] or () for name in ("fasta", "gff", "held_out")}
        data |= {"scales": SCALES if scales is None else _numbers(scales), "code": _code(genetic_code, start_codons)}
        source = make_source(**data)
        with making(out or NumberedFolder(Path("runs"), "label")) as made, work_shown(json):
            session = run.start(made, source, Settings(**settings), changes)
    _train(session, began, json)


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
    run_session(session, "label train", json, lambda status, seconds: _document(session, status, began))


def _document(session: Session, status: Display, began: float) -> dict[str, Any]:
    folder, task = session.run.folder, session.trainer.task
    about = {"run": str(folder), "steps": session.trainer.step, "stopped": status.reason}
    if status.code:
        return about
    assert isinstance(task, run.LabellingTask)  # what this command begins, and resumes
    report = retried(lambda: task.report(session.model, folder))
    times = {"seconds": clock.perf_counter() - began, "cpu_seconds": clock.process_time()}
    return {**about, **times, **report.document()}


@label.command(cls=Command)
@prepared
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `label train`.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="How the names of the files begin; for a signal, the .npy file.")
    ],
    fasta: Fasta = None,
    signal: Signal = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Smallest probability of a stretch that is found. Default: the one training chose."),
    ] = None,
    exclude: Annotated[Path | None, typer.Option(metavar="FILE.bed", help="Regions where nothing is found.")] = None,
    soft_masked: Annotated[bool, typer.Option("--soft-masked", help="Find nothing in lower case.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Label a genome or a signal of any length with a trained run.

    For a genome it writes OUT.gff3 with what was found, and OUT.plus.bedgraph and OUT.minus.bedgraph with a probability
    per base; for genes also OUT.gtf, OUT.bed and proteins in OUT.faa. For a signal it writes an array (samples,
    classes) of probabilities.

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
    with work_shown(json) as progress:
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


@label.command(cls=Command)
@prepared
def demo(
    bases: Annotated[int, typer.Option(help="Bases in all four chromosomes.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Steps of the optimizer.")] = DEMO_STEPS,
    seed: Annotated[int, typer.Option(help="Seed of genome and weights.")] = 0,
    threads: Threads = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Generate a genome, learn its genes on three chromosomes, and find those of the fourth.

    The model's scores stand beside those of simple rules, learned from the same chromosomes.

    Example: tapeless label demo --bases 500000
    """
    take_threads(DEFAULT_BACKEND, threads)
    began = clock.perf_counter()
    with making(out or NumberedFolder(Path("runs"), "label-demo")) as made, work_shown(json):
        session = run.start_demo(made, bases, Settings(steps=steps, seed=seed, threads=threads))
    _train(session, began, json)
    if not json:
        held_out = ", ".join(run.DEMO_HELD_OUT)
        console.print(f"Its genes on {held_out} are in {escape(str(made.folder / 'held-out.gff3'))}.")
