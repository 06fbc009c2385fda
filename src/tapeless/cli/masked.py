"""`tapeless tokenize` for conversations: which tokens are learned."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tapeless.cli.common import console, harmless, own_command, print_json, quoted, table
from tapeless.tasks.chat.prepare import About, chosen_speech, shown_first
from tapeless.tasks.chat.turns import Turns
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.text import told_left_out

SHOWN = 3  # conversations
OPEN, CLOSE = "⟦", "⟧"  # around what is learned, where there are no colours


def print_shown(source: str, tokenizer: str, vocab: int | None, reading: Reading, json: bool) -> None:
    """The first conversations as the model reads them."""
    reading.validate()
    speech = chosen_speech(source, tokenizer, vocab, reading.encoding)
    found = list(shown_first(source, speech, SHOWN, reading.encoding))
    if json:
        print_json({"conversations": [{"place": place, "parts": _parts(turns)} for place, turns in found]})
        return
    for place, turns in found:
        learned = int(turns.learned.sum())
        console.print(f"[dim]{escape(place)}: {len(turns.ids):,} tokens, {learned:,} of them learned[/]")
        console.print(_coloured(turns))
    how = "green" if console.is_terminal else f"in {OPEN} {CLOSE}"
    console.print(f"[dim]{how}: learned; the rest is read. By {speech.chat.described}, {speech.tokenizer.name}.[/]")


def _parts(turns: Turns) -> list[dict[str, object]]:
    """The text in stretches that are learned, or not."""
    inside = np.zeros(len(turns.text) + 2, bool)
    for begin, end in turns.spans[turns.learned]:
        inside[begin + 1 : end + 1] = True
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    places = [0, *(int(edge) for edge in edges if 0 < edge < len(turns.text)), len(turns.text)]
    return [{"text": turns.text[begin:end], "learned": bool(inside[begin + 1])} for begin, end in pairwise(places)]


def _coloured(turns: Turns) -> Text:
    shown = Text()
    for part in _parts(turns):
        words = harmless(str(part["text"]))
        if not part["learned"]:
            shown.append(words, style="dim")
        else:
            shown.append(words if console.is_terminal else f"{OPEN}{words}{CLOSE}", style="bold green")
    return shown


def print_chats(folder: Path, about: About, seconds: float, json: bool, messages: list[str]) -> None:
    if json:
        print_json({"folder": str(folder), **asdict(about), "seconds": seconds, "messages": messages})
        return
    rows = [
        (
            name,
            f"{side.conversations:,}",
            f"{side.tokens:,}",
            f"{side.learned:,} ({side.learned / side.tokens:.0%})",
        )
        for name, side in (("to train on", about.training), ("held out", about.validation))
    ]
    shown = table(("", ">conversations", ">tokens", ">learned"), rows)
    print_prepared(shown, about, "conversations", folder, "--init-from RUN", seconds)


def print_prepared(shown: Table, about: Any, what: str, folder: Path, trained: str, seconds: float) -> None:
    """What was made of the text, what was left out, where it is, and how to train on it."""
    console.print(shown)
    if about.skipped:
        console.print(f"[dim]{escape(told_left_out(about.skipped, about.examples))}[/]")
    console.print(
        f"\n[bold]{escape(about.tokenizer)}[/], vocabulary {about.vocab:,}, after {seconds:.1f} s. "
        f"The {what} are in [bold]{escape(str(folder))}[/]."
    )
    command = f"{own_command()} train {trained} --data {quoted(folder)}"
    console.print(f"[dim]next:[/] {escape(command)}", soft_wrap=True)
