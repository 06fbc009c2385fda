"""`tapeless evaluate`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tapeless.cli.common import (
    Json,
    Threads,
    compiling_shown,
    console,
    print_json,
    take_threads,
)
from tapeless.cli.reading import ColumnOption, DropOption, EncodingOption, FieldOption
from tapeless.cli.train import preparing_shown
from tapeless.labelling.run import EVERY_KIND
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.data.reading import Reading
from tapeless.train.evaluation import Evaluation
from tapeless.train.evaluation import evaluate as evaluate_run
from tapeless.train.run import open_run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run: a folder that `train` or `import` made.")]
Checkpoint = Annotated[str, typer.Option(help="best, newest, or the step of one that is kept.")]
BackendName = Annotated[str, typer.Option(help="cpu, cuda or reference; auto takes a GPU where there is one.")]


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Option(help="A text, conversations (.jsonl) or tokens, instead of what the run held out.")
    ] = None,
    field: FieldOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = None,
    drop_duplicates: DropOption = False,
    checkpoint: Checkpoint = "best",
    stride: Annotated[
        int | None,
        typer.Option(
            help="Positions by which the window moves; half of it by default. Less is slower, with more context."
        ),
    ] = None,
    backend: BackendName = DEFAULT_BACKEND,
    precision: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; the backend's own by default.")
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """How good a run is: loss, perplexity, bits per byte, and how often it is right.

    By all that the run held out, or by any text or conversations with --data. Of a text every token is scored once,
    foretold from the tokens before it in a window that slides along. Bits are told per byte of the text, so that runs
    with different tokenizers can be compared. Of conversations the assistant's words are scored, by the run's own
    template; what others say is read.

    Example: tapeless evaluate runs/gpt2-4x256-001 --data notes.txt

    Example: tapeless evaluate runs/smollm2-001 --data chats.jsonl
    """
    take_threads(backend, threads)
    opened = open_run(run)
    with preparing_shown(json) as progress, compiling_shown(json):
        found = evaluate_run(
            opened,
            data,
            reading=Reading(field, column, encoding, drop_duplicates),
            checkpoint=checkpoint,
            backend=backend,
            precision=precision,
            stride=stride,
            progress=progress,
            kinds=EVERY_KIND,
        )
    if json:
        print_json({"run": str(run), "checkpoint": checkpoint} | asdict(found))
        return
    for message in found.messages:
        console.print(f"[yellow]{escape(message)}[/]")
    console.print(f"[bold]{escape(str(run))}[/]  {checkpoint} checkpoint, step {found.step:,}; {escape(found.data)}")
    _print(found)


def _print(found: Evaluation) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim", overflow="fold")
    tokens = found.targets is not None
    table.add_row("loss", f"{found.loss:.4f}", "nats a token" if tokens and found.cross_entropy is None else "")
    if found.cross_entropy is not None:
        table.add_row("cross-entropy", f"{found.cross_entropy:.4f}", "nats, of a softmax over the scores")
    if found.perplexity is not None:
        table.add_row(
            "perplexity", f"{found.perplexity:,.2f}" if found.perplexity < 1e9 else f"{found.perplexity:.3g}", ""
        )
    if found.bits_per_byte is not None:
        table.add_row("bits per byte", f"{found.bits_per_byte:.4f}", f"of {found.bytes:,} bytes")
    if found.accuracy is not None:
        table.add_row("right", f"{found.accuracy:.2%}", "the likeliest token is the next" if tokens else "")
    console.print(table)
    if found.conversations is not None:
        console.print(
            f"[dim]{found.targets:,} tokens that the assistant says in {found.conversations:,} "
            f"conversation{'s' * (found.conversations != 1)}, each from all before it in its own.[/]"
        )
    elif found.targets is not None and found.window is not None:
        slides = (
            f"each from the {found.least_context:,} to {found.window:,} before it; at the beginning there are fewer"
        )
        seen = "each from all before it" if found.targets <= found.window else slides
        console.print(f"[dim]{found.targets:,} tokens, each scored once, {seen}.[/]")
