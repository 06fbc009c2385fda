"""`tapeless attend`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.text import Text

from tapeless.cli.common import Json, RunFolder, check_svg, console, print_json, warn
from tapeless.cli.options import BackendName, Checkpoint, Threads, take_threads
from tapeless.cli.progress import work_shown
from tapeless.files.disk import write_whole
from tapeless.pictures.attention import LEGEND, maps_drawn, maps_svg, shown_keys, strips_drawn
from tapeless.step import DEFAULT_BACKEND
from tapeless.train.attending import Attended, chosen, over_training
from tapeless.train.attending import attend as attend_run
from tapeless.train.run import open_run

FEW = 6  # checkpoints that show little of a course


def attend(
    run: RunFolder,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text that the model reads, such as 'Max(1,2,6)'.")
    ],
    checkpoint: Checkpoint = "best",
    over_training_: Annotated[
        bool, typer.Option("--over-training", help="Show one row per checkpoint: what the last token attends to.")
    ] = False,
    layer: Annotated[int | None, typer.Option(help="Show the heads of this block alone.")] = None,
    head: Annotated[int | None, typer.Option(help="Show this head of each block alone.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the maps into this file, too.")] = None,
    backend: BackendName = DEFAULT_BACKEND,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the attention weights of every head for a prompt.

    Each head has a map. A row says how much of each token below one token takes, and adds up to 1. `0.3` is head 3 of
    block 0. If the model answers once per sequence, its last block has one row.

    Example: tapeless attend runs/ops-102k-001 "Max(1,2,6)" --svg attention.svg
    """
    check_svg(svg)
    take_threads(backend, threads)
    opened = open_run(run)
    with work_shown(quiet=json):
        if over_training_:
            found, messages = over_training(opened, prompt, backend=backend)
        else:
            one, messages = attend_run(opened, prompt, at=checkpoint, backend=backend)
            found = [one]
    maps = [(each.step, chosen(each, layer, head)) for each in found]
    words = found[0].words.shown
    if svg is not None:
        if over_training_:
            strips = [(name, np.stack([of[n][1][-1] for _, of in maps])) for n, (name, _) in enumerate(maps[0][1])]
            write_whole(svg, maps_svg(_by_block(strips), words, [f"{step:,}" for step, _ in maps]).encode())
        else:
            write_whole(svg, maps_svg(_by_block(maps[0][1]), words).encode())
    if json:
        print_json(_as_json(run, found, maps, over_training_))
        return
    warn(messages)
    width = console.width
    if over_training_:
        console.print(f"[bold]{escape(str(run))}[/]  what {escape(words[-1])!r} looks at, checkpoint by checkpoint\n")
        lines = strips_drawn(maps, words, width)
    else:
        console.print(f"[bold]{escape(str(run))}[/]  {checkpoint} checkpoint, step {found[0].step:,}\n")
        lines = maps_drawn(maps[0][1], words, width)
    for line in lines:
        console.print(Text(line.rstrip(), no_wrap=True))
    console.print(f"\n[dim]{LEGEND}[/]")
    shown = shown_keys(words, width)
    if shown < len(words):
        console.print(f"[yellow]The last {shown} of {len(words)} words fit here: --svg draws all.[/]")
    if over_training_ and len(maps) < FEW:
        console.print(
            f"[yellow]Only {len(maps)} checkpoints are kept: train with --set keep=50 --save-every 20 to see more.[/]"
        )
    if svg is not None:
        console.print(f"It is drawn in [bold]{escape(str(svg))}[/].", soft_wrap=True)


def _by_block(maps: list[tuple[str, Any]]) -> list[tuple[str, list[tuple[str, Any]]]]:
    blocks: dict[str, list[tuple[str, Any]]] = {}
    for name, weights in maps:
        blocks.setdefault(f"block {name.partition('.')[0]}", []).append((name, weights))
    return list(blocks.items())


def _as_json(run: Path, found: list[Attended], maps: list[tuple[int, Any]], strips: bool) -> dict[str, Any]:
    steps = [
        {"step": step, "heads": {name: weights.astype(float).tolist() for name, weights in of}} for step, of in maps
    ]
    words = found[0].words
    document: dict[str, Any] = {"run": str(run), "tokens": words.tokens, "words": words.shown}
    return document | ({"checkpoints": steps} if strips else steps[0])
