"""`tapeless label`: train a model that labels every position of a signal, label with it, and a demonstration."""

from __future__ import annotations

import os
import time as clock
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from tapeless.backends import blas
from tapeless.cli.common import Json, Threads, compiling_shown, console, own_command, print_json
from tapeless.cli.idle import idle
from tapeless.cli.output import go_on_unread
from tapeless.cli.train import Status, data_line, follow, preparing_shown, print_stopped
from tapeless.errors import TapelessError
from tapeless.genome import baseline
from tapeless.genome.dna import STRANDS, StrandSignal
from tapeless.genome.fasta import read_lengths, read_records
from tapeless.genome.gff import read_annotation
from tapeless.genome.output import Cut, output_paths, writing
from tapeless.genome.scores import Score as BaseScore
from tapeless.genome.synthetic import Synthetic
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.signal.checks import checked_signal
from tapeless.signal.npy import open_array
from tapeless.signal.wavelet import SCALES
from tapeless.train import labelled, run
from tapeless.train.disk import rename, write_file
from tapeless.train.labelled import Data, Report, Scaled, Source
from tapeless.train.run import Run
from tapeless.train.session import Progress, Session
from tapeless.train.session import resume as resume_session
from tapeless.train.settings import Settings

label_app = typer.Typer(
    help="Label every position of a signal: exons in a genome, or classes of your own.", no_args_is_help=True
)

CHROMOSOMES = 4
DEMO_STEPS = 2000
LABELLING = "labelling"

Fasta = Annotated[Path | None, typer.Option(help="A genome, plain or gzip.")]
Signal = Annotated[Path | None, typer.Option(help="A signal: a .npy file of numbers.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-001, -002, … by default.")]


@dataclass(frozen=True)
class Trained:
    session: Session
    source: Source
    data: Data
    status: Status


@label_app.command()
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
    if threads is not None and backend == "reference":
        raise idle("threads", "they are those of the cpu backend")
    if threads is not None:
        blas.set_threads(threads)
    began = clock.perf_counter()
    if resume is not None:
        if named:
            raise TapelessError(
                f"--resume goes on with what it has: leave out --{next(iter(named)).replace('_', '-')}."
            )
        trained = _resumed(resume, model, settings, json)
    else:
        source = labelled.make_source(
            fasta=fasta, gff=gff, feature=feature, held_out=held_out or (), signal=signal, labels=labels,
            scales=SCALES if scales is None else _numbers(scales),
        )  # fmt: skip
        with run.making(out or run.new_folder(Path("runs"), "label")) as made, compiling_shown(json):
            session, data = labelled.start(made, source, Settings(**settings), model)
        trained = Trained(session, source, data, _followed(session, json))
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
    source = labelled.read_source(folder)
    with compiling_shown(json):
        session = resume_session(folder, model, settings)
    data = labelled.read_data(source, session.request.settings.validation)
    return Trained(session, source, data, _followed(session, json))


def _followed(session: Session, json: bool) -> Status:
    go_on_unread()
    if not json:
        model, trainer = session.model, session.trainer
        console.print(
            f"[bold]{escape(model.config.name)}[/]  {model.parameters:,} parameters, {model.backend} backend, "
            f"{model.dtype}; {data_line(session)}; {trainer.steps - trainer.step:,} updates of {model.batch} windows"
        )
        for message in session.messages:
            console.print(f"[yellow]{escape(message)}[/]")
    try:
        return follow(session, shown=not json)
    finally:
        session.recorder.close()


def _finish(trained: Trained, began: float, json: bool, beside: BaseScore | None = None) -> None:
    """Score the last weights, which `label predict` takes, too: none were chosen by what is held out."""
    if trained.status.code:
        _print_stopped(trained, json)
        raise typer.Exit(trained.status.code)
    made = trained.session.run
    with preparing_shown(json) as progress:
        report = labelled.score(made, _last_model(made), trained.source, trained.data, progress)
    seconds = clock.perf_counter() - began
    if json:
        print_json(_document(trained, report, seconds, beside))
    else:
        _print_report(trained, report, seconds, beside)


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


def _document(trained: Trained, report: Report, seconds: float, beside: BaseScore | None) -> dict[str, Any]:
    session = trained.session
    found: dict[str, Any] = {"run": str(session.run.folder), "steps": session.trainer.step}
    if beside is not None:
        found["codon_statistics"] = {"precision": beside.precision, "recall": beside.recall, "f1": beside.f1}
    return {
        **found,
        "stopped": trained.status.reason,
        "seconds": seconds,
        "cpu_seconds": clock.process_time(),
        **report.document(),
    }


def _print_report(trained: Trained, report: Report, seconds: float, beside: BaseScore | None) -> None:
    table = Table(box=None, header_style="dim")
    for heading in ("what was held out", "precision", "recall", "F1"):
        table.add_column(heading, justify="left" if heading == "what was held out" else "right")
    unit = "bases in exons" if trained.source.fasta else "class 1"
    if beside is not None:
        table.add_row("codon statistics: bases in exons", *_shares(beside))
    chosen = report.classes[1:] if report.threshold is not None else report.classes
    for number, each in enumerate(chosen):
        table.add_row(unit if report.threshold is not None else f"class {number}", *_shares(each))
    if report.exons is not None:
        table.add_row("exons, both ends exact", *_shares(report.exons["both"].exact))
        table.add_row("exons, half in common", *_shares(report.exons["both"].half))
    console.print(table)
    if report.threshold is not None:
        console.print(f"[dim]yes from a probability of {report.threshold:.3f}, which fits the training data best[/]")
    folder = trained.session.run.folder
    console.print(
        f"Average precision {report.average_precision:.4f}, after {seconds:.0f} s. The run is in "
        f"[bold]{escape(str(folder))}[/]; the picture is precision-recall.svg.", soft_wrap=True,
    )  # fmt: skip
    what = "--fasta other.fa -o other" if trained.source.fasta else "--signal other.npy -o probabilities.npy"
    console.print(f"[dim]next:[/] {escape(own_command())} label predict {escape(str(folder))} {what}", soft_wrap=True)


def _shares(found: Any) -> list[str]:
    return ["–" if value is None else f"{value:.4f}" for value in (found.precision, found.recall, found.f1)]


@label_app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `label train`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Begin of the files' names; of a signal, the .npy file.")],
    fasta: Fasta = None,
    signal: Signal = None,
    threshold: Annotated[
        float | None, typer.Option(help="Least probability of an exon; by default what training found.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Label a genome or a signal of any length with a trained run.

    Of a genome: OUT.gff3 with the exons, OUT.plus.bedgraph and OUT.minus.bedgraph with the probability of each base.
    Of a signal: an array (samples, classes) of probabilities.

    Example: tapeless label predict runs/label-001 --fasta other.fa -o other
    """
    if threads is not None:
        blas.set_threads(threads)
    opened = run.open_run(folder)
    source = labelled.read_source(folder)
    _check_kind(source, fasta, signal, threshold)
    began = clock.perf_counter()
    if fasta is not None:
        cut = Cut(labelled.read_threshold(folder) if threshold is None else threshold)
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
        counted = ", ".join(f"{value:,} {name}" for name, value in found.items() if isinstance(value, int))
        names = " ".join(escape(str(path)) for path in paths)
        console.print(f"{counted}, after {clock.perf_counter() - began:.1f} s: {names}", soft_wrap=True)


def _check_kind(source: Source, fasta: Path | None, signal: Path | None, threshold: float | None) -> None:
    if (fasta is None) == (signal is None):
        raise TapelessError("give what to label: either --fasta or --signal.")
    if (fasta is not None) != (source.fasta is not None):
        wanted = "--fasta" if source.fasta else "--signal"
        raise TapelessError(f"this run learned from a {'genome' if source.fasta else 'signal'}: give {wanted}.")
    if signal is not None and threshold is not None:
        raise TapelessError("--threshold is for exons, and of a signal all probabilities are written: leave it out.")


def _check_free(paths: tuple[Path, ...], force: bool) -> None:
    for path in paths:
        if not path.parent.is_dir():
            raise TapelessError(f"cannot write {path}: there is no folder {path.parent}; make it first.")
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
        if path.exists() and not force:
            raise TapelessError(f"{path} exists already: choose another name, or overwrite it with --force.")


def _predict_genome(opened: Run, source: Source, fasta: Path, out: Path, cut: Cut, json: bool) -> dict[str, Any]:
    with preparing_shown(json) as progress:
        lengths = read_lengths(fasta)
        total = len(STRANDS) * sum(lengths.values())
        with compiling_shown(json):
            model = _last_model(opened)
        with writing(out, lengths, cut) as writer:
            done = 0
            for record in read_records(fasta):
                if lengths.get(record.name) != len(record.bases):
                    raise TapelessError(f"{fasta} changed while it was read: try again.")
                strands = []
                for strand in STRANDS:
                    strands.append(_exonic(model, StrandSignal(record.bases, strand), source, progress, done, total))
                    done += len(record.bases)
                writer.add(record.name, *strands)
    return {"bases": total // len(STRANDS), "exons": writer.exons, "threshold": cut.threshold}


def _exonic(
    model: Model, signal: StrandSignal, source: Source, progress: Progress, before: int, total: int
) -> Iterator[Array]:
    coming = labelled.probabilities(
        model, signal, source.scales, lambda here: progress(LABELLING, before + here, total)
    )
    return (piece[:, 1] for piece in coming)


def _predict_signal(opened: Run, source: Source, signal: Path, out: Path, json: bool) -> dict[str, Any]:
    values = Scaled(checked_signal(open_array(signal), str(signal)), source.amplitude)
    classes = opened.config().vocab
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    with preparing_shown(json) as progress:
        with compiling_shown(json):
            model = _last_model(opened)

        def contents() -> Iterator[bytes]:
            """Streamed and not mapped: on a full disk a map ends the process, and a write is refused."""
            header = BytesIO()
            shape = {"descr": "<f4", "fortran_order": False, "shape": (len(values), classes)}
            np.lib.format.write_array_header_1_0(header, shape)
            yield header.getvalue()
            for piece in labelled.probabilities(
                model, values, source.scales, lambda here: progress(LABELLING, here, len(values))
            ):
                yield piece.astype("<f4").tobytes()

        try:
            write_file(beside, contents())
            rename(beside, out)
        except OSError as error:
            raise TapelessError(f"cannot write {out}: {error.strerror}; nothing was left there.") from None
        finally:
            with suppress(OSError):
                beside.unlink()
    return {"samples": len(values), "classes": classes}


@label_app.command()
def demo(
    bases: Annotated[int, typer.Option(help="Bases in all four chromosomes.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Updates.")] = DEMO_STEPS,
    seed: Annotated[int, typer.Option(help="Seed of genome and weights.")] = 0,
    threads: Threads = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Make up a genome, learn its exons on three chromosomes, and find those of the fourth.

    Beside the model's scores stand those of codon statistics, learned from the same chromosomes.
    """
    if threads is not None:
        blas.set_threads(threads)
    began = clock.perf_counter()
    with run.making(out or run.new_folder(Path("runs"), "label-demo")) as made, compiling_shown(json):
        genome = Synthetic(seed).write(made.folder / "genome", CHROMOSOMES, bases // CHROMOSOMES)
        source = labelled.make_source(
            fasta=genome.fasta, gff=genome.gff, feature=None, held_out=(f"chr{CHROMOSOMES}",), signal=None, labels=None,
            scales=SCALES,
        )  # fmt: skip
        session, data = labelled.start(made, source, Settings(steps=steps, seed=seed, threads=threads), {})
        beside = _codon_statistics(source)
    _finish(Trained(session, source, data, _followed(session, json)), began, json, beside)
    if not json:
        console.print(f"Its exons on chr{CHROMOSOMES} are in {escape(str(session.run.folder / 'held-out.gff3'))}.")


def _codon_statistics(source: Source) -> BaseScore:
    """Learned on the same chromosomes, scored on the same one."""
    assert source.fasta is not None
    assert source.gff is not None
    letters = {record.name: record.bases for record in read_records(Path(source.fasta))}
    exons = read_annotation(Path(source.gff), {name: len(each) for name, each in letters.items()}).intervals
    held_out = {name: letters.pop(name) for name in source.held_out}
    return baseline.score(baseline.fit(letters, exons), held_out, exons)
