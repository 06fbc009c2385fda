"""What `tapeless train --find-lr` shows: the sweep, the short trainings, a suggestion, and how to take it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from rich.markup import escape

from tapeless.cli.common import bars, console, own_command, print_json, table
from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.train.find_rate import RateFound
from tapeless.train.rate_picture import picture

FULL = 24  # columns of the longest bar


def refuse_beside(resume: Path | None, out: Path | None) -> None:
    """Before anything is opened: what does not go together with looking for a rate."""
    if resume is not None:
        raise TapelessError(
            f"--find-lr looks for the rate of a run that begins, and {resume} has begun: leave out --resume, or take "
            f"its weights with --init-from."
        )
    if out is not None and out.suffix != ".svg":
        raise TapelessError(f"--find-lr trains nothing and draws a picture: --out must end in .svg, not {str(out)!r}.")
    if out is not None and not out.parent.is_dir():
        raise TapelessError(f"{out.parent} is no folder, so the picture {out} has no place there: make it first.")


def print_found(found: RateFound, out: Path | None, json: bool) -> None:
    if out is not None:
        write_whole(out, picture(found).encode())
    if json:
        print_json(
            {
                "rate": found.rate,
                "loss_before": found.before,
                "loss": found.best.loss,
                "sweep": [asdict(each) for each in found.sweep],
                "tries": [asdict(each) for each in found.tries],
                "updates": found.updates,
                "seconds": found.seconds,
                "picture": None if out is None else str(out),
            }
        )
        return
    _print_sweep(found)
    _print_tries(found)
    updates = f"{found.updates:,} updates in {found.seconds:.0f} s; nothing was kept of them"
    console.print(f"\nsuggested learning rate [bold green]{found.rate:.1e}[/]   [dim]{updates}[/]")
    if out is not None:
        console.print(f"The picture is {escape(str(out))}.", soft_wrap=True)
    console.print("[dim]next: train with it:[/]")
    console.print(_command(found.rate), soft_wrap=True, markup=False)


def _print_sweep(found: RateFound) -> None:
    least = min(each.smooth for each in found.sweep)
    heights = [min(each.smooth, 1.2 * found.sweep[0].loss) - 0.95 * least for each in found.sweep]
    first, last = found.sweep[0], found.sweep[-1]
    console.print(f"\n[dim]loss of a sweep, the rate rising from {first.rate:.0e} to {last.rate:.1e}[/]")
    console.print(f"[cyan]{bars(heights)}[/]\n")


def _print_tries(found: RateFound) -> None:
    most = found.before - min(each.loss for each in found.tries)
    rows = []
    for each in sorted(found.tries, key=lambda one: (one.updates, one.rate)):
        learned = isfinite(each.loss)
        bar = "█" * round(FULL * (found.before - each.loss) / most) if learned else ""
        cells = (f"{each.rate:.1e}", str(each.updates), f"{each.loss:.4f}" if learned else "diverged", bar)
        style = "[bold green]" if each is found.best else "" if learned else "[red]"
        rows.append([f"{style}{cell}" for cell in cells])
    console.print(table((">learning rate", ">steps", ">validation loss", "learned"), rows))


def _command(rate: float) -> str:
    """As it was called, but for what looks for a rate."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word == "--out":
            next(words, None)
        elif word not in ("--find-lr", "--json") and not word.startswith("--out="):
            kept.append(word)
    return f"{own_command()} {shlex.join(kept)} --lr {rate:.1e}"
