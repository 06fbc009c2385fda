"""`tapeless evaluate`"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, PrecisionName, RunFolder, console, plural, print_json, table, warn
from tapeless.cli.options import (
    BackendName,
    Checkpoint,
    ColumnOption,
    DropOption,
    EncodingOption,
    FieldOption,
    Threads,
    take_threads,
)
from tapeless.cli.progress import work_shown
from tapeless.labelling.run import EVERY_KIND
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.data.reading import Reading
from tapeless.train.evaluation import Evaluation
from tapeless.train.evaluation import evaluate as evaluate_run
from tapeless.train.run import open_run


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Option(help="Text, conversations (.jsonl) or tokens. Default: the run's validation data.")
    ] = None,
    field: FieldOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = None,
    drop_duplicates: DropOption = False,
    checkpoint: Checkpoint = "best",
    stride: Annotated[
        int | None, typer.Option(help="Positions by which the window moves. Default: half of it; less is slower.")
    ] = None,
    backend: BackendName = DEFAULT_BACKEND,
    precision: PrecisionName = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure how good a run is: loss, perplexity, bits per byte, and accuracy.

    The run's whole validation data is scored, or with --data any text or conversations. In a text every token is scored
    once, from the tokens before it in a window that slides along. Bits are counted per byte of the text, so that runs
    with different tokenizers can be compared. In conversations the assistant's words are scored, by the run's own
    template.

    Example: tapeless evaluate runs/gpt2-4x256-001 --data notes.txt

    Example: tapeless evaluate runs/smollm2-001 --data chats.jsonl
    """
    take_threads(backend, threads)
    opened = open_run(run)
    with work_shown(json) as progress:
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
    warn(found.messages)
    console.print(f"[bold]{escape(str(run))}[/]  {checkpoint} checkpoint, step {found.step:,}; {escape(found.data)}")
    _print(found)


def _print(found: Evaluation) -> None:
    tokens = found.targets is not None
    rows = [("loss", f"{found.loss:.4f}", "nats a token" if tokens and found.cross_entropy is None else "")]
    if found.cross_entropy is not None:
        rows.append(("cross-entropy", f"{found.cross_entropy:.4f}", "nats, of a softmax over the scores"))
    if found.perplexity is not None:
        large = found.perplexity >= 1e9
        rows.append(("perplexity", f"{found.perplexity:.3g}" if large else f"{found.perplexity:,.2f}", ""))
    if found.bits_per_byte is not None:
        rows.append(("bits per byte", f"{found.bits_per_byte:.4f}", f"of {found.bytes:,} bytes"))
    if found.accuracy is not None:
        rows.append(("accuracy", f"{found.accuracy:.2%}", "the likeliest token is the next" if tokens else ""))
    console.print(table(("", ">", ""), [(name, f"[bold]{value}", f"[dim]{note}") for name, value, note in rows]))
    if found.conversations is not None:
        console.print(
            f"[dim]{found.targets:,} tokens that the assistant says in {plural(found.conversations, 'conversation')}, "
            f"each from all before it in its own.[/]"
        )
    elif found.targets is not None and found.window is not None:
        slides = (
            f"each from the {found.least_context:,} to {found.window:,} before it; at the beginning there are fewer"
        )
        seen = "each from all before it" if found.targets <= found.window else slides
        console.print(f"[dim]{found.targets:,} tokens, each scored once, {seen}.[/]")
