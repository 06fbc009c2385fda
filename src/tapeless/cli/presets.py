"""`tapeless presets`"""

from __future__ import annotations

from rich.table import Table

from tapeless.cli.common import Json, console, print_json
from tapeless.models import transformer
from tapeless.models.config import Architecture
from tapeless.models.presets import PRESETS

SIZES = ("layers", "channels", "heads", "hidden", "vocab", "context")


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
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("preset", "parameters", *SIZES):
        table.add_column(column, justify="left" if column == "preset" else "right", overflow="fold")
    kinds: dict[str, list[str]] = {}
    for preset, count in counted:
        config = preset.architecture
        numbers = (config.layers, config.channels, config.heads, config.width, config.vocab, config.context)
        table.add_row(f"[bold]{preset.name}", f"{count:,}", *(f"{n:,}" for n in numbers))
        kinds.setdefault(_kind(config), []).append(preset.name)
    console.print(table)
    console.print()
    for kind, names in kinds.items():
        console.print(f"[bold]{', '.join(names)}[/]: {kind}")
    console.print("\n[dim]Look inside one:[/] tapeless explain ops-102k   [dim]its memory:[/] tapeless plan gpt2-124m")


def _kind(config: Architecture) -> str:
    reads = f"{config.features} features" if config.features else "tokens"
    mask = "causal" if config.causal else "bidirectional"
    return f"{reads}, {config.placement}-norm, {config.activation}, {mask}, {config.loss.replace('_', ' ')}"
