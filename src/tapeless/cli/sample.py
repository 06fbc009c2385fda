"""`tapeless sample`"""

from __future__ import annotations

import sys
import time
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, Threads, compiling_shown, console, print_json, take_threads
from tapeless.step import DEFAULT_BACKEND
from tapeless.trained import Trained, opened


def sample(
    run: Annotated[Path, typer.Argument(help="A run: a folder that `train` or `import` made.")],
    prompt: Annotated[str, typer.Option(help="What it continues; without one it starts a document.")] = "",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", help="Tokens to write, at most. Default: 200.", show_default=False),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the likeliest token. Default: 0.8, for answers 0.", show_default=False),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that make up this share.")] = None,
    stop: Annotated[str | None, typer.Option(help="End when this text was written.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed writes the same text. Default: 0.", show_default=False)
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest checkpoint instead of the best.")] = False,
    backend: Annotated[
        str, typer.Option(help="cpu, cuda or reference; auto takes a GPU where there is one.")
    ] = DEFAULT_BACKEND,
    precision: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; the backend's own by default.")
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Let a trained model write.

    Example: tapeless sample runs/gpt2-4x256-001 --prompt "def " --temperature 0.7 --top-k 50
    """
    take_threads(backend, threads)
    with compiling_shown(quiet=json):
        trained = Trained(opened(run), "newest" if newest else "best", backend=backend, precision=precision)
        writing = trained.stream(prompt, count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop)
        first = next(writing, "")  # reading the prompt: the kernels are compiled here
    for message in trained.messages:
        console.print(f"[yellow]{escape(message)}[/]")
    started, before = time.perf_counter(), len(writing.tokens)
    if json:
        text = writing.whole()
    else:
        for piece in chain([prompt + trained.reader.joint, first], writing):
            sys.stdout.write(piece)
            sys.stdout.flush()
    seconds = time.perf_counter() - started
    ids, slid = writing.tokens, writing.slid
    speed = (len(ids) - before) / seconds if len(ids) > before else None
    if json:
        document = {"run": str(run), "step": trained.step, "prompt": prompt, "text": text, "tokens": ids}
        print_json(document | {"ended": writing.ended, "slid": slid, "tokens_per_second": speed})
        return
    about = f"{len(ids)} token{'s' * (len(ids) != 1)}" + (f", {speed:,.0f} a second" if speed else "")
    about += f"; {writing.ended}"
    if slid:
        about += (
            f"; past its {trained.window} positions the window slid {slid} time{'s' * (slid > 1)}: "
            f"it no longer sees the beginning"
        )
    console.print(f"\n[dim]{escape(about)}[/]")
