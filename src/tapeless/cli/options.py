"""Options of the commands that load a run or read text, each described once."""

from __future__ import annotations

from typing import Annotated

import typer

from tapeless.tasks.data.reading import READING_HELP

# How a run's model is loaded.
Checkpoint = Annotated[str, typer.Option(help="Which weights: best, newest, or the number of a step.")]
Newest = Annotated[bool, typer.Option("--newest", help="Take the newest checkpoint instead of the best.")]
BackendName = Annotated[str, typer.Option(help="cpu, cuda or reference; auto takes a GPU if there is one.")]
Threads = Annotated[int | None, typer.Option(help="Threads of the cpu backend. Default: one per core.")]

# How text is generated.
Temperature = Annotated[
    float | None,
    typer.Option(help="0 always takes the likeliest token. Default: 0.8, for answers 0.", show_default=False),
]
TopK = Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Choose among the likeliest tokens with this total probability.")]
Seed = Annotated[
    int | None, typer.Option(help="The same seed generates the same text. Default: 0.", show_default=False)
]


# How text is taken out of files.
FieldOption = Annotated[str | None, typer.Option(help=READING_HELP["field"])]
ColumnOption = Annotated[str | None, typer.Option(help=READING_HELP["column"])]
EncodingOption = Annotated[str | None, typer.Option(help=READING_HELP["encoding"])]
DropOption = Annotated[bool, typer.Option("--drop-duplicates", help=READING_HELP["drop_duplicates"])]


def take_threads(backend: str, threads: int | None) -> None:
    """Set the thread count of calls bound from now on, if the backend has threads."""
    from tapeless.backends.backend import backend_named, thread_count

    if threads is not None:
        thread_count(backend_named(backend), threads)
