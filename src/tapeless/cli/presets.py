"""`tapeless presets`"""

from __future__ import annotations

from tapeless.cli.common import Json, console, print_json, table
from tapeless.models import transformer
from tapeless.models.config import Architecture
from tapeless.models.presets import PRESETS

SIZES = ("layers", "channels", "heads", "hidden", "vocab", "context")


def presets(json: Json = False) -> None:
    """List the presets, with their sizes and parameter counts.

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
    rows, kinds = [], dict[str, list[str]]()
    for preset, count in counted:
        config = preset.architecture
        numbers = (count, config.layers, config.channels, config.heads, config.width, config.vocab, config.context)
        rows.append((f"[bold]{preset.name}", *(f"{number:,}" for number in numbers)))
        kinds.setdefault(_kind(config), []).append(preset.name)
    console.print(table(("preset", ">parameters", *(f">{size}" for size in SIZES)), rows))
    console.print()
    for kind, names in kinds.items():
        console.print(f"[bold]{', '.join(names)}[/]: {kind}")
    console.print("\n[dim]Look inside one:[/] tapeless explain ops-102k   [dim]its memory:[/] tapeless plan gpt2-124m")


def _kind(config: Architecture) -> str:
    reads = f"{config.features} features" if config.features else "tokens"
    mask = "causal" if config.causal else "bidirectional"
    return f"{reads}, {config.placement}-norm, {config.activation}, {mask}, {config.loss.replace('_', ' ')}"
