"""`tapeless tokenize`"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tapeless.cli.common import Json, print_json, size, table, warn
from tapeless.cli.masked import print_chats, print_prepared, print_shown
from tapeless.cli.options import ColumnOption, DropOption, EncodingOption, FieldOption
from tapeless.cli.progress import work_shown
from tapeless.errors import TapelessError
from tapeless.tasks.chat.layouts import are_conversations
from tapeless.tasks.chat.prepare import prepare_chats
from tapeless.tasks.data.prepare import DEFAULT_BPE_VOCAB, PreparedData, prepare
from tapeless.tasks.data.reading import PACKED, Reading
from tapeless.tasks.data.tokenizer import load_tokenizer


def tokenize(
    source: Annotated[
        str,
        typer.Argument(
            help="A text file, a folder, a quoted glob, conversations (.jsonl), or stdlib: Python's sources."
        ),
    ],
    field: FieldOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = None,
    drop_duplicates: DropOption = False,
    tokenizer: Annotated[
        str, typer.Option(help="bytes, bpe (learned from the text), a tokenizer.json, or a run or folder with one.")
    ] = "bytes",
    vocab: Annotated[
        int | None, typer.Option(help=f"Tokens that bpe learns. Default: {DEFAULT_BPE_VOCAB}.", show_default=False)
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Fraction of the text that becomes validation data, in whole documents.")
    ] = 0.1,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the choice of validation documents. Default: 0.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="New folder. Default: data/NAME-TOKENIZER.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show the first conversations, learned tokens in green; write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Turn text into tokens to train on, once for many runs.

    A file is a document, and so is each row of JSON (.jsonl, .json) and of a table (.csv, .tsv); .gz and .zst are
    unpacked. A document is training or validation data as a whole, with all that have the same text; a single document
    is cut once, at a line end. In a folder, hidden, binary and empty files are left out, and files that are not UTF-8.

    Example: tapeless tokenize reviews.csv.gz --column body --drop-duplicates

    Example: tapeless tokenize stdlib --tokenizer bpe --vocab 4096 --out data/python

    Example: tapeless tokenize chats.jsonl --tokenizer runs/smollm2-001 --show
    """
    reading = Reading(field, column, encoding, drop_duplicates)
    spoken = are_conversations(source, named=field is not None)
    if show:
        if not spoken:
            raise TapelessError(f"--show shows conversations, and {source} holds none: leave it out.")
        print_shown(source, tokenizer, vocab, reading, json)
        return
    started = time.perf_counter()
    with work_shown(json) as progress:
        folder = out or _default_folder(source, tokenizer)
        how: dict[str, Any] = {
            "tokenizer": tokenizer,
            "vocab": vocab,
            "validation": validation,
            "seed": seed or 0,
            "reading": reading,
        }
        if spoken:
            about = prepare_chats(source, folder, **how, progress=progress)
        else:
            prepared = prepare(source, folder, **how, progress=progress)
    seconds = time.perf_counter() - started
    guessed = "" if tokenizer in ("bytes", "bpe") else load_tokenizer(tokenizer).guessed
    messages = [f"{guessed}."] if guessed else []
    if not json:
        warn(messages)
    if spoken:
        print_chats(folder, about, seconds, json, messages)
        return
    if json:
        summary = _summary(prepared) | {"seconds": seconds, "messages": messages}
        print_json({"folder": str(prepared.folder), **summary})
    else:
        _print(prepared, seconds)


def _default_folder(source: str, tokenizer: str) -> Path:
    """data/stdlib-bpe, data/shakespeare-bytes, …: named by the source and the tokenizer."""
    names = [Path(os.path.realpath(given)) for given in (source, tokenizer)]  # which a link to itself does not disturb
    plain = [(Path(name.stem) if name.suffix in PACKED else name).stem.strip(".*?[]") for name in names]
    return Path("data") / f"{plain[0] or 'text'}-{plain[1] or 'json'}"


def _summary(prepared: PreparedData) -> dict[str, Any]:
    summary = asdict(prepared.meta)
    for name in ("training", "validation"):
        summary[name]["tokens_per_byte"] = summary[name]["tokens"] / summary[name]["bytes"]
    return summary


def _print(prepared: PreparedData, seconds: float) -> None:
    meta = prepared.meta
    rows = []
    for name, split in (("to train on", meta.training), ("held out", meta.validation)):
        ratio = f"{split.tokens / split.bytes:.3f}"
        counts = (f"{split.documents:,}", size(split.bytes), f"{split.tokens:,}", ratio, f"{len(split.shards)}")
        rows.append((name, *counts))
    shown = table(("", ">documents", ">text", ">tokens", ">tokens per byte", ">shards"), rows)
    print_prepared(shown, meta, "tokens", prepared.folder, "gpt2-4x256", seconds)
