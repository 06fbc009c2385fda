"""`tapeless presets`"""

from __future__ import annotations

from rich.table import Table

from tapeless.cli.common import Json, console, print_json
from tapeless.models import transformer
from tapeless.models.config import Architecture
from tapeless.models.presets import PRESETS


def presets(json: Json = False) -> None:
    """The presets, with parameter counts.

    Example: tapeless presets --json
    """
    counted = [(preset, transformer.evaluation(preset, 1, 1).parameters) for preset in PRESETS.values()]
    if json:
        print_json(
            [
                {"name": each.name, **each.values(), "hidden": each.architecture.width, "parameters": count}
                for each, count in counted
            ]
        )
        return
    table = Table(box=None, header_style="dim")
    for column in ("preset", "parameters", "layers", "channels", "heads", "hidden", "vocab", "context"):
        short = column in ("preset", "parameters")
        table.add_column(column, justify="left" if column == "preset" else "right", no_wrap=short, overflow="fold")
    table.add_column("kind")
    for preset, count in counted:
        config = preset.architecture
        numbers = (config.layers, config.channels, config.heads, config.width, config.vocab, config.context)
        table.add_row(f"[bold]{preset.name}", f"{count:,}", *(f"{n:,}" for n in numbers), _kind(config))
    console.print(table)
    console.print("\n[dim]Look inside one:[/] tapeless explain ops-102k   [dim]its memory:[/] tapeless plan gpt2-124m")


def _kind(config: Architecture) -> str:
    reads = f"{config.features} features" if config.features else "tokens"
    mask = "causal" if config.causal else "bidirectional"
    return f"{reads}, {config.placement}-norm, {config.activation}, {mask}, {config.loss.replace('_', ' ')}"
