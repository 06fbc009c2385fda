"""A run made of a folder in the Hugging Face layout, and such a folder made of a run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.adapters import merged
from tapeless.models.config import Architecture, Preset
from tapeless.ops.contract import Array
from tapeless.tasks.chat.template import Chat, kept_chat, published_chat
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer
from tapeless.train import checkpoint
from tapeless.train.base import all_weights, as_held, write_base
from tapeless.train.resolve import OF_A_TRAINING
from tapeless.train.run import NumberedFolder, Run, making, write_configuration
from tapeless.train.settings import Request, Settings
from tapeless.weights import hugging_face, peft
from tapeless.weights.gguf import write_gguf

IMPORTED = "imported"  # in the place of a preset: it is none of ours


@dataclass(frozen=True)
class Imported:
    run: Run
    parameters: int
    has_tokenizer: bool
    has_chat: bool  # a template of its own
    messages: tuple[str, ...] = ()


def import_folder(folder: Path, out: Path | NumberedFolder, origin: str | None = None) -> Imported:
    """A new run, to sample from or to train further. `origin`: where the folder came from, if not from here."""
    config = hugging_face.read_config(folder)
    preset = Preset(IMPORTED, config)
    model = Model(preset, backend="reference", precision="float32", time=1, optimizer=None)
    hugging_face.read_weights(folder, config, model.params)
    tokenizer = hugging_face.tokenizer_of(folder)
    chat: Chat | None = None
    known: Tokenizer | None = None
    if tokenizer is not None:
        known = load_tokenizer(tokenizer)
        if known.vocab > config.vocab:
            raise TapelessError(f"{tokenizer} knows {known.vocab:,} tokens and the model only {config.vocab:,}.")
        chat = published_chat(folder, known)
    with making(out) as made:
        request = Request(preset.name, {}, Settings(tokenizer="tokenizer.json" if tokenizer else "none"))
        write_configuration(made, request, preset)
        if tokenizer is not None and known is not None:
            shutil.copyfile(tokenizer, made.folder / "tokenizer.json")
            known.save_named(made.folder)
        if chat is not None and chat.own:
            chat.save(made.folder)
        state = {"step": 0, "from": origin or str(folder)}
        checkpoint.save(made.checkpoints, 0, {"weights": model.weights()}, state, best=True)
    messages = (f"{known.guessed}.",) if known is not None and known.guessed else ()
    return Imported(made, model.parameters, known is not None, chat is not None and chat.own, messages)


def import_adapter(folder: Path, base: Run, out: Path | NumberedFolder) -> Imported:
    """A new run: the weights of `base`, and beside them adapters as peft saves them."""
    found, _ = base.checkpoint("best")
    bare, theirs = base.preset().override(**OF_A_TRAINING), base.request().settings
    weights = merged(base.preset(), all_weights(found))
    adapter = peft.read_adapter(folder, bare)
    preset, tokenizer = bare.override(**adapter.fields), base.tokenizer_spec()
    with making(out) as made:
        settings = Settings(tokenizer=theirs.tokenizer, time=theirs.time)
        write_configuration(made, Request(preset.name, {}, settings), preset)
        if isinstance(tokenizer, Path):
            shutil.copyfile(tokenizer, made.folder / "tokenizer.json")
            load_tokenizer(tokenizer).save_named(made.folder)
        chat = kept_chat(base.folder, tokenizer)
        if chat is not None and chat.own:
            chat.save(made.folder)
        declared = transformer.evaluation(preset, 1, 1).weights
        digest = write_base(made.folder, as_held(weights, declared, preset.frozen_precision))
        if adapter.base not in (None, digest):
            raise TapelessError(
                f"{folder} was trained on top of other weights than those of {base.folder}: name the run that it was "
                f"made from (its weights have the SHA-256 {adapter.base}, these {digest})."
            )
        state = {"step": 0, "from": str(folder), "base": digest}
        checkpoint.save(made.checkpoints, 0, {"weights": adapter.weights}, state, best=True)
    parameters = sum(array.size for array in (*weights.values(), *adapter.weights.values()))
    return Imported(made, parameters, tokenizer is not None, chat is not None and chat.own)


@dataclass(frozen=True)
class Exported:
    step: int  # of the weights
    tokenizer: bool  # whether there is one
    messages: list[str]
    loader: str  # the class of transformers that loads it; of adapters, that of peft
    merged: bool  # whether adapters were folded into the weights


def export_run(opened: Run, folder: Path, which: str, dtype: str = "float32", merge: bool = False) -> Exported:
    """Write the weights of the `best` or `newest` checkpoint as a folder that transformers loads as it is; of a run
    with adapters those alone, as peft loads them, or with `merge` the model that they make."""
    preset = opened.preset()
    if merge and preset.lora is None:
        raise TapelessError(f"{opened.folder} has no adapters to merge: leave out --merge.")
    if preset.train and preset.lora is not None and not merge:
        raise TapelessError(
            f"{opened.folder} trains {', '.join(preset.train)} beside its adapters, which peft has no place for: "
            f"export the whole model with --merge."
        )
    model, found, messages = opened.model(which, backend="reference", precision="float32", time=1)
    spec = opened.tokenizer_spec()
    if preset.lora is not None and not merge:
        base = found.state.get("base")
        peft.write_adapter(folder, preset, model.weights(), base if isinstance(base, str) else None, dtype)
        if preset.frozen_precision:
            messages.append(
                f"The adapters were trained beside matrices in {preset.frozen_precision}: on a base that is not "
                f"rounded to it they make a slightly different model. --merge writes the one that was trained."
            )
        return Exported(found.step, False, messages, "PeftModel", merged=False)
    config, params = _trained(model, opened.window())
    hugging_face.write_folder(folder, config, params, spec, dtype, kept_chat(opened.folder, spec))
    loader: str = hugging_face.family_of(config).described(config)["architectures"][0]
    return Exported(found.step, spec is not None, messages, loader, merged=merge)


def export_gguf(opened: Run, path: Path, which: str, dtype: str = "float32") -> Exported:
    """Write the weights of the `best` or `newest` checkpoint as one file that llama.cpp runs; of a run with adapters
    the model that they make."""
    model, found, messages = opened.model(which, backend="reference", precision="float32", time=1)
    spec = opened.tokenizer_spec()
    config, params = _trained(model, opened.window())
    write_gguf(path, opened.folder.resolve().name, config, params, spec, dtype, kept_chat(opened.folder, spec))
    return Exported(found.step, spec is not None, messages, "llama-cli", merged=opened.preset().lora is not None)


def _trained(model: Model, positions: int) -> tuple[Architecture, Mapping[str, Array]]:
    """Without the positions that it was never trained on: whoever loads it would write there."""
    params = merged(model.preset, model.weights())
    if "positions.weight" in params:
        params["positions.weight"] = params["positions.weight"][:positions]
    return replace(model.config, context=positions), params
