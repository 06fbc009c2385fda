"""`tapeless sample`"""

from __future__ import annotations

import sys
import time
from itertools import chain
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, PrecisionName, RunFolder, console, plural, print_json, warn
from tapeless.cli.options import BackendName, Newest, Seed, Temperature, Threads, TopK, TopP, take_threads
from tapeless.cli.progress import work_shown
from tapeless.step import DEFAULT_BACKEND
from tapeless.trained import Trained, opened


def sample(
    run: RunFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue. Default: start a new document.")] = "",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", help="Most tokens to write. Default: 200.", show_default=False),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    stop: Annotated[str | None, typer.Option(help="End when this text was written.")] = None,
    seed: Seed = None,
    newest: Newest = False,
    backend: BackendName = DEFAULT_BACKEND,
    precision: PrecisionName = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Generate text with a trained model.

    Example: tapeless sample runs/gpt2-4x256-001 --prompt "def " --temperature 0.7 --top-k 50
    """
    take_threads(backend, threads)
    with work_shown(quiet=json):
        trained = Trained(opened(run), "newest" if newest else "best", backend=backend, precision=precision)
        writing = trained.stream(prompt, count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop)
        first = next(writing, "")  # reading the prompt: the kernels are compiled here
    started, before = time.perf_counter(), len(writing.tokens)
    if json:
        text = writing.whole()
    else:
        warn(trained.messages)
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
    about = plural(len(ids), "token") + (f", {speed:,.0f} a second" if speed else "") + f"; {writing.ended}"
    if slid:
        about += f"; past its {trained.window} positions the window slid {plural(slid, 'time')}: "
        about += "it no longer sees the beginning"
    console.print(f"\n[dim]{escape(about)}[/]")
