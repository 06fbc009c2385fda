"""`tapeless import` and `tapeless export`: weights in the Hugging Face layout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, Out, RunFolder, console, named_path, own_command, print_json, quoted, warn
from tapeless.cli.options import Newest
from tapeless.cli.subject import check_no_hub_name
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
            help="A folder with config.json and model.safetensors, a peft adapter, or a model of the hub.",
        ),
    ],
    base: Annotated[Path | None, typer.Option(metavar="RUN", help="The run whose model an adapter adapts.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Import a model as a run, to generate with or to train further: GPT-2, Llama, Mistral, Qwen2 or Qwen3.

    From the hub, only safetensors, JSON and templates are fetched, never a pickle.

    Example: tapeless import models/gpt2 && tapeless train --init-from runs/gpt2-001 --data notes.txt

    Example: tapeless import hf:HuggingFaceTB/SmolLM2-135M-Instruct && tapeless chat runs/SmolLM2-135M-Instruct-001
    """
    if is_hub_name(source):
        fetched = fetch(source, quiet=json or not console.is_terminal)
        folder, name, origin = fetched.folder, fetched.name, fetched.origin
    else:
        check_no_hub_name(source)
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
    warn(imported.messages)
    words = (
        "with its tokenizer"
        if tokenizer
        else "without a tokenizer, as there is no tokenizer.json: it can be trained on tokens, but not write text"
    )
    place, run = escape(str(made.folder)), escape(quoted(made.folder))
    console.print(f"{imported.parameters:,} parameters in [bold]{place}[/], {words}.", soft_wrap=True)
    data = "YOUR.txt" if tokenizer else "TOKENS.bin"
    commands = [(f"train --init-from {run} --data {data}", "train it further")]
    commands += [(f"sample {run} --prompt 'Once'", "let it write")] if tokenizer else []
    commands += [(f"chat {run}", "talk with it")] if imported.has_chat else []
    for number, (rest, what) in enumerate(commands):
        start = "     " if number else "next:"
        console.print(f"[dim]{start}[/] {escape(own_command())} {rest}   [dim]{what}[/]", soft_wrap=True)


def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make, or with --gguf the file.")],
    newest: Newest = False,
    precision: Annotated[str, typer.Option(help=f"Type of the weights: {', '.join(TYPES)}.")] = "float32",
    merge: Annotated[bool, typer.Option("--merge", help="Add a run's LoRA adapters to the weights.")] = False,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Write one file for llama.cpp and Ollama, with adapters merged.")
    ] = False,
    json: Json = False,
) -> None:
    """Export a run's weights as a folder that `transformers` loads as it is.

    A run with LoRA adapters (train --lora) is exported as adapters that `peft` loads, or with --merge as a whole model.

    Example: tapeless export runs/gpt2-4x256-001 my-gpt

    Example: tapeless export runs/llama-4x256-001 mine.gguf --gguf --precision float16
    """
    opened, checkpoint = open_run(run), "newest" if newest else "best"
    exported = (
        export_gguf(opened, folder, checkpoint, precision)
        if gguf
        else export_run(opened, folder, checkpoint, precision, merge)
    )
    if json:
        print_json({"file" if gguf else "folder": str(folder), **asdict(exported)})
        return
    warn(exported.messages)
    adapters = exported.loader == "PeftModel"
    merged = ", with the adapters merged," if exported.merged else ""
    what = "adapters" if adapters else "weights"
    without = "" if gguf or adapters or exported.tokenizer else ", without a tokenizer, as the run learned from tokens"
    told = f"the {what} after step {exported.step:,}{merged} are in [bold]{escape(str(folder))}[/]{without}:"
    console.print(told, soft_wrap=True)
    for line in _loading(exported, folder, gguf):
        console.print(line, soft_wrap=True, markup=False, style="dim")


def _loading(exported: Exported, folder: Path, gguf: bool) -> list[str]:
    """The lines with which another program loads what was exported."""
    if gguf:
        return [f"{exported.loader} -m {quoted(folder)}"]
    if exported.loader == "PeftModel":
        return [f"peft.PeftModel.from_pretrained(base, {str(folder)!r})"]
    kinds = (exported.loader, "AutoTokenizer") if exported.tokenizer else (exported.loader,)
    return [f"transformers.{kind}.from_pretrained({str(folder)!r})" for kind in kinds]
