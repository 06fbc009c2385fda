"""`tapeless sample`"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, Threads, compiling_shown, console, print_json
from tapeless.cli.idle import idle, take_threads
from tapeless.errors import TapelessError
from tapeless.generate import generate
from tapeless.model import DEFAULT_BACKEND
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer
from tapeless.train.run import open_run


def sample(
    run: Annotated[Path, typer.Argument(help="A run: a folder that `train` or `import` made.")],
    prompt: Annotated[str, typer.Option(help="What it continues; without one it starts a document.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", help="Tokens to write, at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that make up this share.")] = None,
    stop: Annotated[str | None, typer.Option(help="End when this text was written.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed writes the same text. Default: 0.", show_default=False)
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest checkpoint instead of the best.")] = False,
    backend: Annotated[str, typer.Option(help="cpu, cuda or reference.")] = DEFAULT_BACKEND,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Let a trained model write.

    Example: tapeless sample runs/gpt2-4x256-001 --prompt "def " --temperature 0.7 --top-k 50
    """
    if temperature == 0:
        for name, value in {"top_k": top_k, "top_p": top_p, "seed": seed}.items():
            if value is not None:
                raise idle(name, "at temperature 0 nothing is drawn: the likeliest token is taken")
    take_threads(backend, threads)
    opened = open_run(run)
    spec = opened.tokenizer_spec()
    if spec is None:
        raise TapelessError(f"{run} did not learn from text, so it has no tokenizer to write with.")
    if stop == "":
        raise TapelessError("--stop must be some text; leave it out to write on.")
    tokenizer = load_tokenizer(spec)
    tokens = tokenizer.encode(prompt) or [tokenizer.end]
    with compiling_shown(quiet=json):
        model, found, messages = opened.model("newest" if newest else "best", backend=backend)
        slid: list[int] = []
        window = opened.window()
        words = generate(
            model, tokens, count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed or 0,
            stop=[tokenizer.end], window=window, on_slide=lambda: slid.append(1),
        )  # fmt: skip
        first = next(words, None)  # reading the prompt: the kernels are compiled here
    for message in messages:
        console.print(f"[yellow]{escape(message)}[/]")
    started = time.perf_counter()
    ids, text, ended = _written(tokenizer, chain([] if first is None else [first], words), stop, prompt, shown=not json)
    if not ended:
        ended = "as many as were asked for" if len(ids) == count else "the document ended"
    seconds = time.perf_counter() - started
    speed = (len(ids) - 1) / seconds if len(ids) > 1 else None
    if json:
        document = {"run": str(run), "step": found.step, "prompt": prompt, "text": text, "tokens": ids}
        print_json(document | {"ended": ended, "slid": len(slid), "tokens_per_second": speed})
        return
    about = f"{len(ids)} tokens" + (f", {speed:,.0f} a second" if speed else "") + f"; {ended}"
    if slid:
        about += (
            f"; past its {window} positions the window slid {len(slid)} time{'s' * (len(slid) > 1)}: "
            f"it no longer sees the beginning"
        )
    console.print(f"\n[dim]{escape(about)}[/]")


def _written(
    tokenizer: Tokenizer, tokens: Iterable[int], stop: str | None, prompt: str, shown: bool
) -> tuple[list[int], str, str]:
    """Tokens and text, shown as they come; what may be the beginning of the stop text is held back until it is not."""
    ids: list[int] = []
    text, written, ended = "", 0, ""
    spell = tokenizer.stream()

    def show(upto: int) -> None:
        nonlocal written
        if shown and upto > written:
            sys.stdout.write(text[written:upto])
            sys.stdout.flush()
            written = upto

    if shown:
        sys.stdout.write(prompt)
    for token in tokens:
        ids.append(token)
        text += spell.push(token)
        if stop is not None and stop in text:
            text, ended = text[: text.index(stop)], f"{stop!r} was reached"
            break
        show(len(text) if stop is None else len(text) - _overlap(text, stop))
    else:
        text += spell.finish()
    show(len(text))
    return ids, text, ended


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end could be the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
