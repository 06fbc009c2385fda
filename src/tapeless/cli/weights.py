"""`tapeless import` and `tapeless export`: weights in the Hugging Face layout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, console, own_command, print_json
from tapeless.cli.paths import named_path, quoted
from tapeless.errors import TapelessError
from tapeless.train.run import NumberedFolder, open_run
from tapeless.weights.hub import fetch, is_hub_name
from tapeless.weights.hugging_face import TYPES
from tapeless.weights.peft import is_adapter
from tapeless.weights.runs import Exported, export_gguf, export_run, import_adapter, import_folder


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|hf:OWNER/NAME",
            help="A folder with config.json and model.safetensors, an adapter of peft, or a model of the hub.",
        ),
    ],
    base: Annotated[Path | None, typer.Option(help="Of an adapter: the run whose model it adapts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-001, -002, … by default.")] = None,
    json: Json = False,
) -> None:
    """Take a model into a run, to sample from or to train further: GPT-2, Llama, Mistral, Qwen2 or Qwen3.

    From the hub only safetensors, JSON and templates are fetched, never a pickle.

    Example: tapeless import models/gpt2 && tapeless train --init-from runs/gpt2-001 --data notes.txt

    Example: tapeless import hf:HuggingFaceTB/SmolLM2-135M-Instruct && tapeless chat runs/SmolLM2-135M-Instruct-001
    """
    if is_hub_name(source):
        fetched = fetch(source, quiet=json or not console.is_terminal)
        folder, name, origin = fetched.folder, fetched.name, fetched.origin
    else:
        folder = named_path(source)
        name, origin = folder.resolve().name, None
    target = out or NumberedFolder(Path("runs"), name)
    if is_adapter(folder):
        if base is None:
            raise TapelessError(f"{source} is an adapter: name the run whose model it adapts with --base.")
        imported = import_adapter(folder, open_run(base), target)
    elif base is not None:
        raise TapelessError(f"{source} is no adapter, as it has no adapter_config.json: leave out --base.")
    else:
        imported = import_folder(folder, target, origin)
    made, tokenizer = imported.run, imported.has_tokenizer
    if json:
        said = {"run": str(made.folder), "parameters": imported.parameters, "tokenizer": tokenizer}
        print_json(said | {"messages": list(imported.messages)})
        return
    for message in imported.messages:
        console.print(f"[yellow]{escape(message)}[/]")
    command, place = escape(own_command()), escape(str(made.folder))
    words = (
        "with its tokenizer"
        if tokenizer
        else "without a tokenizer, as there is no tokenizer.json: it can be trained on tokens, but not write text"
    )
    console.print(f"{imported.parameters:,} parameters in [bold]{place}[/], {words}.", soft_wrap=True)
    data, run = "YOUR.txt" if tokenizer else "TOKENS.bin", escape(quoted(made.folder))
    console.print(
        f"[dim]next:[/] {command} train --init-from {run} --data {data}   [dim]train it further[/]", soft_wrap=True
    )
    if tokenizer:
        console.print(f"      {command} sample {run} --prompt 'Once'   [dim]let it write[/]", soft_wrap=True)
    if imported.has_chat:
        console.print(f"      {command} chat {run}   [dim]talk with it[/]", soft_wrap=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run of a GPT.")],
    folder: Annotated[Path, typer.Argument(help="The folder to make, or with --gguf the file.")],
    newest: Annotated[bool, typer.Option("--newest", help="The newest checkpoint instead of the best.")] = False,
    precision: Annotated[str, typer.Option(help=f"Type of the weights: {', '.join(TYPES)}.")] = "float32",
    merge: Annotated[bool, typer.Option("--merge", help="Of a run with adapters: fold them into the weights.")] = False,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="One file for llama.cpp and Ollama instead of a folder, adapters folded in.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a run's weights as a folder that `transformers` loads as it is; of a run with adapters (train --lora) the
    adapters, as `peft` loads them, or with --merge the whole model.

    Example: tapeless export runs/gpt2-4x256-001 my-gpt

    Example: tapeless export runs/llama-4x256-001 mine.gguf --gguf --precision float16
    """
    if gguf:
        _print_file(folder, export_gguf(open_run(run), folder, "newest" if newest else "best", precision), json)
        return
    exported = export_run(open_run(run), folder, "newest" if newest else "best", precision, merge)
    if json:
        print_json({"folder": str(folder), **asdict(exported)})
        return
    for message in exported.messages:
        console.print(f"[yellow]{escape(message)}[/]")
    if exported.loader == "PeftModel":
        console.print(
            f"the adapters after update {exported.step:,} are in [bold]{escape(str(folder))}[/]:", soft_wrap=True
        )
        console.print(
            f"peft.PeftModel.from_pretrained(base, {str(folder)!r})", soft_wrap=True, markup=False, style="dim"
        )
        return
    beside = "" if exported.tokenizer else ", without a tokenizer, as the run learned from bare tokens"
    console.print(f"{_told(exported)} are in [bold]{escape(str(folder))}[/]{beside}:", soft_wrap=True)
    kinds = (exported.loader, "AutoTokenizer") if exported.tokenizer else (exported.loader,)
    for kind in kinds:
        console.print(
            f"transformers.{kind}.from_pretrained({str(folder)!r})", soft_wrap=True, markup=False, style="dim"
        )


def _print_file(path: Path, exported: Exported, json: bool) -> None:
    if json:
        print_json({"file": str(path), **asdict(exported)})
        return
    for message in exported.messages:
        console.print(f"[yellow]{escape(message)}[/]")
    console.print(f"{_told(exported)} are in [bold]{escape(str(path))}[/]:", soft_wrap=True)
    console.print(f"{exported.loader} -m {quoted(path)}", soft_wrap=True, markup=False, style="dim")


def _told(exported: Exported) -> str:
    folded = ", with the adapters folded in," if exported.merged else ""
    return f"the weights after update {exported.step:,}{folded}"
