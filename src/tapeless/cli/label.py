"""`tapeless label`: train a model that labels every position of a signal, label with it, and a demonstration."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.cli.common import Json, Threads, compiling_shown, console, print_json
from tapeless.cli.idle import idle, take_threads
from tapeless.cli.label_report import plural, print_report, report_document
from tapeless.cli.output import go_on_unread
from tapeless.cli.paths import with_paths
from tapeless.cli.train import Status, data_line, follow, insist, preparing_shown, print_stopped
from tapeless.errors import TapelessError
from tapeless.labelling import run as labelled_run
from tapeless.labelling.genome.fasta import read_lengths
from tapeless.labelling.genome.output import Cut, output_paths
from tapeless.labelling.genome.synthetic import Synthetic
from tapeless.labelling.output import label_genome, label_signal, open_signal
from tapeless.labelling.run import Labelling
from tapeless.labelling.scores import kind_of, read_cut, score
from tapeless.labelling.signal.wavelet import SCALES
from tapeless.labelling.source import Source, make_source, read_source, read_statistics
from tapeless.model import DEFAULT_BACKEND, Model
from tapeless.train import run
from tapeless.train.run import Run
from tapeless.train.session import Session
from tapeless.train.settings import Settings

label_app = typer.Typer(
    help="Label every position of a signal: exons in a genome, or classes of your own.", no_args_is_help=True
)

CHROMOSOMES = 4
DEMO_STEPS = 2000

Fasta = Annotated[Path | None, typer.Option(help="A genome, plain or gzip.")]
Signal = Annotated[Path | None, typer.Option(help="A signal: a .npy file of numbers.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-001, -002, … by default.")]


@dataclass(frozen=True)
class Trained:
    labelling: Labelling
    status: Status

    @property
    def session(self) -> Session:
        return self.labelling.session


@label_app.command()
@with_paths
def train(
    fasta: Fasta = None,
    gff: Annotated[Path | None, typer.Option(help="Its genes in GFF3.")] = None,
    feature: Annotated[str | None, typer.Option(help="What to find; exon by default, or CDS.")] = None,
    held_out: Annotated[list[str] | None, typer.Option(help="A sequence to hold out; can be repeated.")] = None,
    signal: Signal = None,
    labels: Annotated[Path | None, typer.Option(help="Its classes, 0, 1, …, −1 where unknown: .npy.")] = None,
    scales: Annotated[str | None, typer.Option(help="Periods in samples, such as 3,4,5.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share at the end that is held out.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", "-B", help="Windows at a time.")] = None,
    time: Annotated[int | None, typer.Option("--time", "-T", help="Positions per window.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data, instead of steps.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks.")] = None,
    channels: Annotated[int | None, typer.Option(help="Width of the residual stream.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and data.")] = None,
    threads: Threads = None,
    backend: Annotated[str | None, typer.Option(help="cpu or reference.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; only --steps may change.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Learn to label, and score what was held out.

    Ctrl-C saves and leaves; --resume goes on. The run gets scores.json and precision-recall.svg.

    Example: tapeless label train --fasta genome.fa --gff genes.gff3 --held-out chr4
    """
    settings = _given(
        validation=validation, batch=batch, time=time, steps=steps, epochs=epochs, lr=lr, seed=seed, threads=threads,
        backend=backend,
    )  # fmt: skip
    model = _given(layers=layers, channels=channels, heads=heads)
    named = _given(
        fasta=fasta, gff=gff, feature=feature, held_out=held_out, signal=signal, labels=labels, scales=scales, out=out
    )
    if held_out and validation is not None:
        raise idle("validation", "--held-out names what is held out")
    take_threads(backend or DEFAULT_BACKEND, threads)
    began = clock.perf_counter()
    if resume is not None:
        if named:
            raise TapelessError(
                f"--resume goes on with what it has: leave out --{next(iter(named)).replace('_', '-')}."
            )
        trained = _resumed(resume, model, settings, json)
    else:
        source = make_source(
            fasta=fasta, gff=gff, feature=feature, held_out=held_out or (), signal=signal, labels=labels,
            scales=SCALES if scales is None else _numbers(scales),
        )  # fmt: skip
        with run.making(out or run.Numbered(Path("runs"), "label")) as made, compiling_shown(json):
            labelling = labelled_run.start(made, source, Settings(**settings), model)
        trained = Trained(labelling, _followed(labelling.session, json))
    _finish(trained, began, json)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise TapelessError(
            f"--scales must be numbers with commas between them, such as 3,4,5, not {text!r}."
        ) from None


def _resumed(folder: Path, model: dict[str, Any], settings: dict[str, Any], json: bool) -> Trained:
    with compiling_shown(json):
        labelling = labelled_run.resume(folder, model, settings)
    return Trained(labelling, _followed(labelling.session, json))


def _followed(session: Session, json: bool) -> Status:
    go_on_unread()
    if not json:
        model, trainer = session.model, session.trainer
        console.print(
            f"[bold]{escape(model.config.name)}[/]  {model.parameters:,} parameters, {model.backend} backend, "
            f"{model.precision.name}; {data_line(session)}; "
            f"{trainer.steps - trainer.step:,} updates of {model.batch} windows"
        )
        for message in session.messages:
            console.print(f"[yellow]{escape(message)}[/]")
    return follow(session, shown=not json)


def _finish(trained: Trained, began: float, json: bool) -> None:
    """Score the last weights, which `label predict` takes, too: none were chosen by what is held out."""
    if trained.status.code:
        _print_stopped(trained, json)
        raise typer.Exit(trained.status.code)
    made = trained.session.run
    with preparing_shown(json) as progress:
        last = _last_model(made)
        report = insist(lambda: score(made, last, trained.labelling.opened, progress), shown=not json)
    seconds = clock.perf_counter() - began
    if json:
        print_json(report_document(trained.session, trained.status.reason, report, seconds))
    else:
        print_report(trained.session, report, seconds)


def _last_model(opened: Run) -> Model:
    settings = opened.request().settings
    model, _, messages = opened.model("newest", batch=settings.batch, time=settings.time, backend=settings.backend)
    for message in messages:
        typer.echo(message, err=True)
    return model


def _print_stopped(trained: Trained, json: bool) -> None:
    status, folder = trained.status, trained.session.run.folder
    if json:
        print_json({"run": str(folder), "steps": trained.session.trainer.step, "stopped": status.reason})
        return
    print_stopped(trained.session, status, "label train")


@label_app.command()
@with_paths
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `label train`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Begin of the files' names; of a signal, the .npy file.")],
    fasta: Fasta = None,
    signal: Signal = None,
    threshold: Annotated[
        float | None, typer.Option(help="Least probability of what is found; by default what training chose.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Label a genome or a signal of any length with a trained run.

    Of a genome: OUT.gff3 with what was found, OUT.plus.bedgraph and OUT.minus.bedgraph with a probability per base.
    Of a signal: an array (samples, classes) of probabilities.

    Example: tapeless label predict runs/label-001 --fasta other.fa -o other
    """
    take_threads(DEFAULT_BACKEND, threads)
    opened = run.open_run(folder)
    source = read_source(folder)
    _check_kind(source, fasta, signal, threshold)
    began = clock.perf_counter()
    if fasta is not None:
        cut = read_cut(folder)
        if threshold is not None:
            cut = replace(cut, threshold=threshold)
        paths: tuple[Path, ...] = output_paths(out)
        _check_free(paths, force)
        found = _predict_genome(opened, source, fasta, out, cut, json)
    else:
        assert signal is not None
        paths = (out if out.suffix == ".npy" else out.with_name(out.name + ".npy"),)
        _check_free(paths, force)
        found = _predict_signal(opened, source, signal, paths[0], json)
    if json:
        print_json({**found, "files": [str(path) for path in paths], "seconds": clock.perf_counter() - began})
    else:
        names = {"stretches": plural(str(found.get("feature")))}
        counted = ", ".join(f"{found[name]:,} {names.get(name, name)}" for name in found if type(found[name]) is int)
        written = " ".join(escape(str(path)) for path in paths)
        console.print(f"{counted}, after {clock.perf_counter() - began:.1f} s: {written}", soft_wrap=True)


def _check_kind(source: Source, fasta: Path | None, signal: Path | None, threshold: float | None) -> None:
    if (fasta is None) == (signal is None):
        raise TapelessError("give what to label: either --fasta or --signal.")
    if (fasta is not None) != (source.fasta is not None):
        wanted = "--fasta" if source.fasta else "--signal"
        raise TapelessError(f"this run learned from a {'genome' if source.fasta else 'signal'}: give {wanted}.")
    if signal is not None and threshold is not None:
        raise TapelessError("--threshold is for genomes, and of a signal all probabilities are written: leave it out.")


def _check_free(paths: tuple[Path, ...], force: bool) -> None:
    for path in paths:
        if not path.parent.is_dir():
            raise TapelessError(f"cannot write {path}: there is no folder {path.parent}; make it first.")
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
        if path.exists() and not force:
            raise TapelessError(f"{path} exists already: choose another name, or overwrite it with --force.")


def _predict_genome(opened: Run, source: Source, fasta: Path, out: Path, cut: Cut, json: bool) -> dict[str, Any]:
    statistics = read_statistics(opened.folder)
    with preparing_shown(json) as progress:
        lengths = read_lengths(fasta)
        with compiling_shown(json):
            model = _last_model(opened)
        found = label_genome(model, source, statistics, fasta, lengths, out, cut, progress)
    feature = kind_of(source, statistics).feature
    return {"bases": sum(lengths.values()), "feature": feature, "stretches": found, "threshold": cut.threshold}


def _predict_signal(opened: Run, source: Source, signal: Path, out: Path, json: bool) -> dict[str, Any]:
    values = open_signal(source, signal)
    with preparing_shown(json) as progress:
        with compiling_shown(json):
            model = _last_model(opened)
        label_signal(model, source, values, out, progress)
    return {"samples": len(values), "classes": opened.config().vocab}


@label_app.command()
@with_paths
def demo(
    bases: Annotated[int, typer.Option(help="Bases in all four chromosomes.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Updates.")] = DEMO_STEPS,
    seed: Annotated[int, typer.Option(help="Seed of genome and weights.")] = 0,
    threads: Threads = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Make up a genome, learn its exons on three chromosomes, and find those of the fourth.

    Beside the model's scores stand those of codon statistics and of open frames, learned from the same chromosomes.
    """
    take_threads(DEFAULT_BACKEND, threads)
    began = clock.perf_counter()
    with run.making(out or run.Numbered(Path("runs"), "label-demo")) as made, compiling_shown(json):
        genome = Synthetic(seed).write(made.folder / "genome", CHROMOSOMES, bases // CHROMOSOMES)
        source = make_source(
            fasta=genome.fasta, gff=genome.gff, feature=None, held_out=(f"chr{CHROMOSOMES}",), signal=None, labels=None,
            scales=SCALES,
        )  # fmt: skip
        labelling = labelled_run.start(made, source, Settings(steps=steps, seed=seed, threads=threads), {})
    _finish(Trained(labelling, _followed(labelling.session, json)), began, json)
    if not json:
        console.print(f"Its exons on chr{CHROMOSOMES} are in {escape(str(made.folder / 'held-out.gff3'))}.")
