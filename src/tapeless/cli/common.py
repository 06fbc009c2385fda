"""What the commands share: preset fields as options, sizes for people, the console."""

from __future__ import annotations

import inspect
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from tapeless.errors import TapelessError
from tapeless.models.config import CHOICES, OVERRIDABLE, RENAMED, Architecture, Layout, Preset
from tapeless.shown import flops as flops
from tapeless.shown import shape as shape
from tapeless.shown import size as size
from tapeless.tasks.data.reading import READING_HELP

# In a pipe or a file there is no terminal whose width would matter.
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="A preset; `tapeless presets` lists them.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
Batch = Annotated[int, typer.Option("--batch", "-B", help="Sequences per step.")]
Time = Annotated[int | None, typer.Option("--time", "-T", help="Positions per sequence.")]
Threads = Annotated[int | None, typer.Option(help="Threads of the cpu backend; all cores by default.")]
# How text is taken out of files, wherever a command reads some.
FieldOption = Annotated[str | None, typer.Option(help=READING_HELP["field"])]
ColumnOption = Annotated[str | None, typer.Option(help=READING_HELP["column"])]
EncodingOption = Annotated[str | None, typer.Option(help=READING_HELP["encoding"])]
DropOption = Annotated[bool, typer.Option("--drop-duplicates", help=READING_HELP["drop_duplicates"])]
Seed = Annotated[int, typer.Option(help="Seed of weights and data.")]

_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "tuple[str, ...]": list[str]}
_SHORT = {"batch": "-B", "time": "-T"}
PRESET_HELP = {
    "layers": "Blocks.",
    "channels": "Width of the residual stream.",
    "heads": "Attention heads; they divide the channels.",
    "vocab": "Words it knows, or classes it tells apart.",
    "context": "The most positions it can read.",
    "hidden": "Width of the feed-forward; by default four times the channels.",
    "kv_heads": "Heads of keys and values, which heads of queries share; by default one each.",
    "head_width": "Channels of a head; by default the channels are divided among the heads.",
    "query_key_norm": "Norm each head of queries and keys.",
    "rope_base": "Of rotary positions: how much slower the slowest channels turn.",
    "rope_factor": "By how much rope_scaling slows rotary positions down.",
    "rope_low": "Of llama3 scaling: turns in the old context below which a rate is slowed down.",
    "rope_high": "Of llama3 scaling: turns in the old context above which a rate is kept.",
    "rope_old_context": "Of llama3 scaling: the context before it was lengthened.",
    "window": "Positions that one sees, itself the last; 0 means all before it.",
    "projection_bias": "Where attention has biases: also in its last product.",
    "mlp_bias": "Biases in the feed-forward.",
    "causal": "Positions see only those before them.",
    "tied": "The head is the token embedding.",
    "recompute": "Keep only each block's ends: less memory, more time.",
    "keep_norms": "Keep what norms give until the backward: more memory, less time.",
    "lean": "Gradients lie where activations were: less memory, and one batch makes an update.",
    "attention_bias": "Biases in the attention's products.",
    "features": "Real numbers per position instead of tokens.",
    "norm_eps": "What the norms add to the variance.",
    "chunk": "Rows of logits that exist at a time; as many as suit the backend by default.",
    "dropout": "Share of every branch and of the embedding that is left out while it learns.",
    "frozen": "Weights that are not trained, by a pattern over their names, such as 'blocks.[0-2].*'; repeatable.",
    "frozen_precision": "Of matrices that are not trained: bfloat16 takes half the memory of float32.",
    "train": "What alone is trained, the rest stays: norms, biases, embedding, head, blocks.11, or names of weights.",
    "lora": "Train adapters of this rank instead of the weights, which stay as they are.",
    "lora_alpha": "Adapters are scaled by alpha / rank; by default twice the rank.",
    "lora_targets": "Projections that are adapted, such as q,v; all by default.",
}


def with_flowing_help(command: Callable[..., None]) -> Callable[..., None]:
    """Let each paragraph of a command's help be as wide as the terminal is, and not as the source."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in paragraphs)
    return command


def with_preset_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every field of a preset; those that were set arrive as `changes`."""
    given = [each for part in (Architecture, Layout, Preset) for each in fields(part) if each.name in OVERRIDABLE]
    return _with_fields(command, "changes", given, renamed=tuple(RENAMED))


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting of a training; those that were set arrive as `settings`."""
    from tapeless.train.settings import Settings, usual_settings

    return _with_fields(command, "settings", list(fields(Settings)), usual_settings)


def with_default(text: str, usual: dict[str, Any]) -> str:
    """A help text, and what is meant where nobody says: one value, or what it is for each kind of task that has one."""
    known = {kind: f"{value:g}" if isinstance(value, float) else str(value) for kind, value in usual.items()}
    known = {kind: value for kind, value in known.items() if value not in ("None", "False")}
    if len(known) == len(usual) and len(set(known.values())) == 1:
        return f"{text} Default: {next(iter(known.values()))}."
    listed = ", ".join(f"{value} for {kind}" for kind, value in known.items())
    return f"{text} Default: {listed}." if known else text


def _with_fields(
    command: Callable[..., None],
    arrive_as: str,
    candidates: list[Field[Any]],
    defaults: Callable[[str], dict[str, Any]] | None = None,
    renamed: tuple[str, ...] = (),
) -> Callable[..., None]:
    taken = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in taken.parameters.items() if name != arrive_as]
    chosen = [each for each in candidates if each.name not in taken.parameters]
    names = [*(each.name for each in chosen), *renamed]

    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name) for name in names if values[name] is not None}
        for old in given.keys() & {*renamed}:
            raise TapelessError(f"--{old} is called --{RENAMED[old]} now: say --{RENAMED[old]} {given[old]}.")
        command(**{name: value for name, value in values.items() if name not in names}, **{arrive_as: given})

    options = []
    for each in chosen:
        kind = _TYPES[str(each.type).split(" | ")[0]]
        switch = each.name.replace("_", "-")
        flags = [f"--{switch}/--no-{switch}" if kind is bool else f"--{switch}", _SHORT.get(each.name, "")]
        text = each.metadata.get("help") or PRESET_HELP.get(each.name) or " or ".join(CHOICES[each.name]) + "."
        if defaults:
            text = with_default(text, defaults(each.name))
        panel = each.metadata.get("panel", "Preset fields")
        option = typer.Option(*filter(None, flags), help=text, rich_help_panel=panel, show_default=False)
        annotation: Any = Annotated[Optional[kind], option]  # noqa: UP045
        options.append(
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    for name in renamed:  # known, so that it can be said what they are called now
        hidden: Any = Annotated[Optional[str], typer.Option(f"--{name}", hidden=True)]  # noqa: UP045
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hidden))
    parameters = [*own, *options]
    wrapped.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


@contextmanager
def compiling_shown(quiet: bool) -> Iterator[None]:
    """A bar while kernels are compiled: the first time that takes a few seconds."""
    from tapeless.cli.progress import counted
    from tapeless.kernels.cpu import compilations, progress_listeners

    started, before = time.perf_counter(), len(compilations)
    with counted("compiling kernels", quiet) as counter:
        progress_listeners.append(counter)
        try:
            yield
        finally:
            progress_listeners.remove(counter)
    fresh = [entry for entry in compilations[before:] if not entry.cached]
    if fresh and not quiet:
        seconds = time.perf_counter() - started
        kernels = "1 kernel" if len(fresh) == 1 else f"{len(fresh)} kernels"
        console.print(f"[dim]compiled {kernels} in {seconds:.1f} s; next time from disk[/]")


def print_json(document: Any) -> None:
    # What is no character, as in a file's name that is not UTF-8, must stay JSON.
    text = json.dumps(_without_nan(document), ensure_ascii=False, allow_nan=False)
    print(text if _prints(text) else json.dumps(_without_nan(document), allow_nan=False))


def _prints(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _without_nan(document: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(document, dict):
        return {key: _without_nan(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_without_nan(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def count(number: float) -> str:
    """A number for people: 102 k, 16.3 M."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} P"


def bars(values: list[float], width: int) -> str:
    """A row of block characters, one per column, as high as the largest value of its stretch."""
    if not values:
        return ""
    width = min(width, len(values))
    top = max(values) or 1
    stretches = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * max(stretch) / top)] for stretch in stretches)


def harmless(text: str) -> str:
    """As it can be shown: what would steer a terminal is a picture of it, character for character."""
    return "".join(each if each in "\n\t" or each.isprintable() else _picture(each) for each in text)


def _picture(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else "␡" if code == 127 else "\N{REPLACEMENT CHARACTER}"


def own_command() -> str:
    """How this program was started: after `make train` it is in .venv/bin and not on the PATH."""
    program = sys.argv[0]
    started_as = "python -m tapeless" if program.endswith("__main__.py") else shlex.quote(os.path.relpath(program))
    return "tapeless" if shutil.which("tapeless") else started_as
