"""`tapeless import` and `tapeless export`: GPT-2 weights in the Hugging Face layout."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, console, own_command, print_json
from tapeless.cli.paths import quoted
from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models.config import Architecture, Preset
from tapeless.ops.contract import Array
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.train import checkpoint
from tapeless.train.run import NumberedFolder, making, open_run, write_configuration
from tapeless.train.settings import Request, Settings
from tapeless.weights import hugging_face

IMPORTED = "imported"  # in the place of a preset: it is none of ours


def import_(
    folder: Annotated[Path, typer.Argument(help="A GPT-2 folder: config.json, model.safetensors, tokenizer.json.")],
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-001, -002, … by default.")] = None,
    json: Json = False,
) -> None:
    """Take GPT-2 weights into a run, to sample from or to train further.

    Example: tapeless import models/gpt2 && tapeless train --from runs/gpt2-001 --data notes.txt
    """
    config = hugging_face.read_config(folder)
    preset = Preset(IMPORTED, config)
    model = Model(preset, backend="reference", precision="float32", time=1, optimizer=None)
    hugging_face.read_weights(folder, model.params)
    tokenizer = hugging_face.tokenizer_of(folder)
    if tokenizer is not None:
        known = load_tokenizer(tokenizer).vocab
        if known > config.vocab:
            raise TapelessError(f"{tokenizer} knows {known:,} tokens and the model only {config.vocab:,}.")
    with making(out or NumberedFolder(Path("runs"), folder.resolve().name)) as made:
        request = Request(preset.name, {}, Settings(tokenizer="tokenizer.json" if tokenizer else "none"))
        write_configuration(made, request, preset)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, made.folder / "tokenizer.json")
        state = {"step": 0, "from": str(folder)}
        checkpoint.save(made.checkpoints, 0, {"weights": model.weights()}, state, best=True)
    if json:
        print_json({"run": str(made.folder), "parameters": model.parameters, "tokenizer": tokenizer is not None})
        return
    command, place = escape(own_command()), escape(str(made.folder))
    words = (
        "with its tokenizer"
        if tokenizer
        else "without a tokenizer, as there is no tokenizer.json: it can be trained on tokens, but not write text"
    )
    console.print(f"{model.parameters:,} parameters in [bold]{place}[/], {words}.", soft_wrap=True)
    data, run = "YOUR.txt" if tokenizer else "TOKENS.bin", escape(quoted(made.folder))
    console.print(
        f"[dim]next:[/] {command} train --from {run} --data {data}   [dim]train it further[/]", soft_wrap=True
    )
    if tokenizer:
        console.print(f"      {command} sample {run} --prompt 'Once'   [dim]let it write[/]", soft_wrap=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run of a GPT.")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    newest: Annotated[bool, typer.Option("--newest", help="The newest checkpoint instead of the best.")] = False,
    json: Json = False,
) -> None:
    """Write a run's weights as a GPT-2 folder that `transformers` loads as it is.

    Example: tapeless export runs/gpt2-4x256-001 my-gpt
    """
    opened = open_run(run)
    model, found, messages = opened.model(
        "newest" if newest else "best", backend="reference", precision="float32", time=1
    )
    spec = opened.tokenizer_spec()
    has_tokenizer = spec is not None
    config, params = _trained(model, opened.window())
    hugging_face.write_folder(folder, config, params, spec)
    if json:
        print_json({"folder": str(folder), "step": found.step, "tokenizer": has_tokenizer, "messages": messages})
        return
    for message in messages:
        console.print(f"[yellow]{escape(message)}[/]")
    beside = "" if has_tokenizer else ", without a tokenizer, as the run learned from bare tokens"
    place = escape(str(folder))
    console.print(f"the weights after update {found.step:,} are in [bold]{place}[/]{beside}:", soft_wrap=True)
    kinds = ("GPT2LMHeadModel", "AutoTokenizer") if has_tokenizer else ("GPT2LMHeadModel",)
    for kind in kinds:
        console.print(
            f"transformers.{kind}.from_pretrained({str(folder)!r})", soft_wrap=True, markup=False, style="dim"
        )


def _trained(model: Model, positions: int) -> tuple[Architecture, Mapping[str, Array]]:
    """Without the positions that it was never trained on: whoever loads it would write there."""
    params = model.weights()
    if "positions.weight" in params:
        params["positions.weight"] = params["positions.weight"][:positions]
    return replace(model.config, context=positions), params
