"""GPT-2 in the Hugging Face layout, in and out: config.json, model.safetensors, tokenizer.json.

The tensors are ours under other names, with no transposition. A folder comes from anywhere, so everything in it is
checked before it is believed: sizes against the tensors that are there, before memory is taken for them; every value,
before the first weight is changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import fsync_folder, make_folder, remove_folder, rename, write_file
from tapeless.files.plain import read_plain
from tapeless.files.safetensors import write_safetensors
from tapeless.inputs import spelled
from tapeless.models import transformer
from tapeless.models.config import Architecture, Preset
from tapeless.ops.contract import Array, Shape
from tapeless.tasks.data.files import LARGEST_JSON
from tapeless.tasks.data.tokenizer import ByteTokenizer
from tapeless.weights.tensors import PREFIX, Stored, is_file, read_object, show, stored_tensors

PARTS = {
    "tokens": "wte",
    "positions": "wpe",
    "blocks": "h",
    "norm1": "ln_1",
    "qkv": "c_attn",
    "proj": "c_proj",
    "norm2": "ln_2",
    "up": "c_fc",
    "down": "c_proj",
    "norm": "ln_f",
    "head": "lm_head",
}
HEAD = "lm_head.weight"
BLOCK_TENSORS = 12
PIECE = 2**18  # elements checked at a time

ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "tanh": "tanh"}
THEIR_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh"}
# What changes the computation in a way that we do not have: the one value that can be read.
FIXED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
# What a model must be to be a GPT-2.
GPT2 = {
    "placement": "pre",
    "positions": "learned",
    "causal": True,
    "attention_bias": True,
    "features": 0,
    "readout": "all",
    "loss": "cross_entropy",
}

END_OF_TEXT = "<|endoftext|>"


def read_config(folder: Path) -> Architecture:
    """The model that a folder describes, once the tensors beside it are seen to fit.

    Dropout is not read: a training says what its own is.
    """
    fields = read_object(folder, "config.json")
    where = folder / "config.json"
    if fields.get("model_type") != "gpt2":
        raise TapelessError(f"{where} has model_type {show(fields.get('model_type'))}: only 'gpt2' can be read.")
    for name, readable in FIXED.items():
        if fields.get(name, readable) is not readable:
            raise TapelessError(
                f"{where} has {name}={show(fields[name])}, which tapeless does not have: only {readable} can be read."
            )
    tied, eps = fields.get("tie_word_embeddings", True), fields.get("layer_norm_epsilon", 1e-5)
    if not isinstance(tied, bool):
        raise TapelessError(f"{where} has tie_word_embeddings={show(tied)}: it must be true or false.")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise TapelessError(f"{where} has layer_norm_epsilon={show(eps)}: it must be a number between 0 and 1.")
    config = Architecture(
        layers=_size(where, fields, "n_layer"),
        channels=_size(where, fields, "n_embd"),
        heads=_size(where, fields, "n_head"),
        vocab=_size(where, fields, "vocab_size"),
        context=_size(where, fields, "n_positions" if "n_positions" in fields else "n_ctx"),
        hidden=None if fields.get("n_inner") is None else _size(where, fields, "n_inner"),
        activation=_activation(where, fields.get("activation_function", "gelu_new")),
        tied=tied,
        norm_eps=eps,
    )
    if config.channels % config.heads:
        raise TapelessError(
            f"{where} has n_embd={config.channels}, which n_head={config.heads} does not divide: one of them is wrong."
        )
    try:
        config.validate()
    except TapelessError as error:
        raise TapelessError(f"{where}: {error}") from None
    _check_described(folder, config)
    return config


def read_weights(folder: Path, into: Mapping[str, Array]) -> None:
    """Fill the weights of a model, by name; all is read and checked once before the first one is changed."""
    stored = stored_tensors(folder)
    sources = _matched(folder, stored, {name: array.shape for name, array in into.items()})
    for name, source in sources.items():
        for values in _rows(source.read()):
            _check_finite(f"{source.path} has {show(source.name)}", values, into[name].dtype)
    if "head.weight" not in into and HEAD in stored:
        _check_tied(folder, stored[HEAD], sources["tokens.weight"])
    for name, source in sources.items():
        into[name][...] = source.read()


def tokenizer_of(folder: Path) -> Path | None:
    path = folder / "tokenizer.json"
    return path if is_file(path) else None


def write_folder(folder: Path, config: Architecture, params: Mapping[str, Array], tokenizer: str | Path | None) -> None:
    """A folder that transformers loads as it is, in float32; written beside and renamed, so it is whole or not there.

    `tokenizer` is a tokenizer.json, or "bytes". Dropout is written as 0: a training says what its own is.
    """
    _check_gpt2(config)
    _check_params(config, params)
    described = None if tokenizer is None else _described(tokenizer)
    end = None if described is None else _end_of_text(str(tokenizer), described, config)
    target = _free(folder)
    beside = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        make_folder(target.parent)
        beside.mkdir()
        _write_json(beside / "config.json", _their_config(config, end))
        theirs = {their_name(name): array for name, array in params.items()}
        write_safetensors(beside / "model.safetensors", theirs, dtype="<f4", metadata={"format": "pt"})
        if described is not None:
            write_file(beside / "tokenizer.json", [described])
            about = _tokenizer_config(config, end)
            if tokenizer == "bytes":  # to which a text that spells the end token out is like any other
                about["split_special_tokens"] = True
            _write_json(beside / "tokenizer_config.json", about)
        fsync_folder(beside)
        rename(beside, target)
    except OSError as error:
        raise TapelessError(f"cannot write {folder}: {error.strerror}.") from None
    finally:
        remove_folder(beside)


def their_name(name: str) -> str:
    """What transformers calls a weight of ours."""
    theirs = ".".join(PARTS.get(part, part) for part in name.split("."))
    return theirs if theirs == HEAD else PREFIX + theirs


def _size(where: Path, fields: Mapping[str, Any], name: str) -> int:
    if name not in fields:
        missing = "n_positions" if name == "n_ctx" else name
        raise TapelessError(f"{where} has no {missing}: add it, so that the model's size is known.")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise TapelessError(f"{where} has {name}={show(value)}: it must be a whole number from 1 to {2**31 - 1}.")
    return value


def _activation(where: Path, name: Any) -> str:
    if name == "gelu":
        raise TapelessError(
            f"{where} has activation_function='gelu', the exact form: tapeless has its tanh form only ('gelu_new')."
        )
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise TapelessError(f"{where} has activation_function={show(name)}: only {', '.join(ACTIVATIONS)} can be read.")
    return ACTIVATIONS[name]


def _shapes(config: Architecture) -> dict[str, Shape]:
    return {
        weight.name: weight.shape for weight in transformer.evaluation(Preset("gpt2", config), batch=1, time=1).weights
    }


def _check_described(folder: Path, config: Architecture) -> None:
    """A configuration alone could ask for any amount of memory: it must have the tensors to show for it."""
    stored = stored_tensors(folder)
    if BLOCK_TENSORS * config.layers > len(stored):
        raise TapelessError(
            f"{folder / 'config.json'} has n_layer={config.layers}, {BLOCK_TENSORS} tensors each, "
            f"but {folder} holds {len(stored)} tensors in all."
        )
    _matched(folder, stored, _shapes(config))


def _matched(folder: Path, stored: Mapping[str, Stored], shapes: Mapping[str, Shape]) -> dict[str, Stored]:
    """The tensor for each of our weights: none missing, none left over, each of the right shape and a type we read."""
    wanted = {their_name(name).removeprefix(PREFIX): name for name in shapes}
    missing = wanted.keys() - stored.keys()
    if missing:
        raise TapelessError(f"{folder} lacks {_some(missing)}: save the whole model again.")
    # A tied head may be stored all the same; whether it is the embedding is seen when its values are read.
    extra = stored.keys() - wanted.keys() - {HEAD}
    if extra:
        raise TapelessError(f"{folder} holds {_some(extra)}, which this GPT-2 has no place for.")
    shapes_wanted = {theirs: shapes[ours] for theirs, ours in wanted.items()}
    for plain, tensor in stored.items():
        array, shape = tensor.read(), shapes_wanted.get(plain) or shapes_wanted["wte.weight"]
        if array.shape != shape:
            raise TapelessError(
                f"{tensor.path} has {show(tensor.name)} of shape {spelled(array.shape)}, "
                f"but the model needs {spelled(shape)}: config.json and weights do not belong together."
            )
        if array.dtype.kind != "f":
            raise TapelessError(
                f"{tensor.path} has {show(tensor.name)} as {array.dtype}: weights must be floating-point."
            )
    return {name: stored[theirs] for theirs, name in wanted.items()}


def _some(names: set[str]) -> str:
    first, more = show(min(names)), len(names) - 1
    return f"the tensor {first}" + (f" and {more} more" if more else "")


def _check_finite(what: str, values: Array, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(dtype, copy=False))
    if wrong.any():
        value = values[wrong][0]
        reason = f"too large for {np.dtype(dtype)}" if np.isfinite(value) else "not a finite number"
        raise TapelessError(f"{what} with {value} inside, {reason}: such a model computes nothing.")


def _check_tied(folder: Path, head: Stored, tokens: Stored) -> None:
    for ours, theirs in zip(_rows(tokens.read()), _rows(head.read()), strict=True):
        if not np.array_equal(ours, theirs):
            raise TapelessError(
                f"{folder} ties the head to the embedding, but its {head.name} differs from {tokens.name}: "
                f"set tie_word_embeddings to false in config.json, or leave {head.name} out."
            )


def _check_gpt2(config: Architecture) -> None:
    for name, value in GPT2.items():
        if getattr(config, name) != value:
            raise TapelessError(
                f"this model has {name}={getattr(config, name)!r}, and a GPT-2 has {name}={value!r}: "
                f"the Hugging Face layout has no place for this model."
            )


def _check_params(config: Architecture, params: Mapping[str, Array]) -> None:
    config.validate()
    shapes = _shapes(config)
    strange = sorted(shapes.keys() ^ params.keys())
    if strange:
        problem = "lack" if strange[0] in shapes else "hold"
        raise TapelessError(f"the weights to export {problem} {strange[0]}: they are not those of this model.")
    for name, array in params.items():
        if array.shape != shapes[name]:
            raise TapelessError(
                f"{name} has shape {spelled(array.shape)}, but this model needs {spelled(shapes[name])}."
            )
        for values in _rows(array):
            _check_finite(name, values, "<f4")


def _rows(array: Array) -> Iterator[Array]:
    rows = max(1, PIECE // prod(array.shape[1:]))
    return (array[first : first + rows] for first in range(0, array.shape[0], rows))


def _described(tokenizer: str | Path) -> bytes:
    """The content of a tokenizer.json."""
    if tokenizer == "bytes":
        return ByteTokenizer().as_json()
    try:
        return read_plain(Path(tokenizer), LARGEST_JSON)
    except OSError as error:
        raise TapelessError(f"cannot read {tokenizer}: {error.strerror}.") from None


def _end_of_text(origin: str, described: bytes, config: Architecture) -> int | None:
    """The id of the end-of-text token, if the tokenizer has one."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TapelessError("to export a tokenizer, install tokenizers: pip install tokenizers.") from None

    try:
        tokenizer = Tokenizer.from_buffer(described)
    except Exception as error:  # it raises nothing more precise
        raise TapelessError(f"{origin} is not a tokenizer that can be read: {error}.") from None
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab:
        raise TapelessError(
            f"{origin} has the token id {largest}, but this model knows {config.vocab} words: "
            f"it is not the tokenizer this model was trained with."
        )
    end: int | None = tokenizer.token_to_id(END_OF_TEXT)
    return end


def _free(folder: Path) -> Path:
    """Where the folder really goes: nothing may be there, or an empty folder."""
    try:
        target = folder.resolve()
        taken = any(target.iterdir()) if target.is_dir() else target.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise TapelessError(f"cannot write {folder}: {getattr(error, 'strerror', error)}.") from None
    if taken:
        raise TapelessError(f"{folder} exists already and is not an empty folder: choose another.")
    return target


def _their_config(config: Architecture, end: int | None) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_embd": config.channels,
        "n_head": config.heads,
        "n_inner": config.hidden,
        "n_positions": config.context,
        "vocab_size": config.vocab,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tied,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), end),  # else GPT-2's own 50256, whatever the vocabulary
    }


def _tokenizer_config(config: Architecture, end: int | None) -> dict[str, Any]:
    """PreTrainedTokenizerFast takes tokenizer.json as it is, where GPT-2's own class would take parts of it."""
    special: dict[str, Any] = {} if end is None else dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context,
        "clean_up_tokenization_spaces": False,
        **special,
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, [json.dumps(value, indent=2).encode() + b"\n"])
