"""Models in the Hugging Face layout, in and out: config.json, model.safetensors, tokenizer.json.

What a family of models calls its tensors, and how it shapes them, stands in `gpt2.py` and `llama.py`. A folder comes
from anywhere, so everything in it is checked before it is believed: sizes against the tensors that are there, before
memory is taken for them; every value, before the first weight is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files.disk import made_whole, write_file
from tapeless.files.plain import read_plain
from tapeless.files.safetensors import write_safetensors
from tapeless.inputs import spelled
from tapeless.models import transformer
from tapeless.models.config import Architecture, Preset
from tapeless.ops.contract import Array, Shape
from tapeless.program.precision import largest
from tapeless.tasks.chat.template import Chat
from tapeless.tasks.data.files import LARGEST_JSON
from tapeless.tasks.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from tapeless.tasks.data.tokenizer_files import GENERATION, NAMES
from tapeless.weights.family import Family, Piece
from tapeless.weights.gpt2 import GPT2_FAMILY
from tapeless.weights.llama import LLAMA_FAMILY
from tapeless.weights.tensors import Stored, is_file, read_object, show, stored_tensors

FAMILIES = (GPT2_FAMILY, LLAMA_FAMILY)
HEAD = "lm_head.weight"
PIECE = 2**18  # elements checked at a time
# In what type weights are written, and what the format calls it.
TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "bfloat16"}


def read_config(folder: Path) -> Architecture:
    """The model that a folder describes, once the tensors beside it are seen to fit.

    Dropout is not read: a training says what its own is.
    """
    fields = read_object(folder, "config.json")
    where = folder / "config.json"
    known = {kind: family for family in FAMILIES for kind in family.classes}
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        listed = ", ".join(repr(each) for each in known)
        raise TapelessError(f"{where} has model_type {show(kind)}: only {listed} can be read.")
    _check_class(where, kind, known[kind].classes[kind], fields.get("architectures"))
    config = known[kind].read(where, fields)
    try:
        config.validate()
    except TapelessError as error:
        raise TapelessError(f"{where}: {error}") from None
    _check_described(folder, known[kind], config)
    return config


def _check_class(where: Path, kind: str, causal: str, named: Any) -> None:
    """A model with another head, or another model under a known model_type, is none of ours; the body alone is."""
    body = causal.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Model"
    if named is not None and not (isinstance(named, list) and all(each in (causal, body) for each in named)):
        raise TapelessError(
            f"{where} has architectures={show(named)}: of model_type {kind!r} only {causal} and {body} can be read."
        )


def family_of(config: Architecture) -> Family:
    """The family of published models that a model of ours belongs to."""
    reasons = [family.fits(config) for family in FAMILIES]
    for family, reason in zip(FAMILIES, reasons, strict=True):
        if reason is None:
            return family
    # Of several that it is not, the one that it is nearest to.
    rotary = config.positions == "rotary"
    raise TapelessError(f"{reasons[int(rotary)]}: the Hugging Face layout has no place for this model.")


def read_weights(folder: Path, config: Architecture, into: Mapping[str, Array]) -> None:
    """Fill the weights of a model, by name; all is read and checked once before the first one is changed."""
    family = family_of(config)
    stored = stored_tensors(folder, family)
    places = _matched(folder, family, stored, config, {name: array.shape for name, array in into.items()})
    for theirs, (name, _) in places.items():
        source = stored[theirs]
        for values in _rows(source.read()):
            check_finite(f"{source.path} has {show(source.name)}", values, into[name].dtype)
    if "head.weight" not in into and HEAD in stored:
        _check_tied(folder, stored[HEAD], stored[family.tokens])
    for theirs, (name, piece) in places.items():
        piece.of(into[name])[...] = stored[theirs].read()


def tokenizer_of(folder: Path) -> Path | None:
    path = folder / "tokenizer.json"
    return path if is_file(path) else None


def write_folder(
    folder: Path,
    config: Architecture,
    params: Mapping[str, Array],
    tokenizer: str | Path | None,
    dtype: str = "float32",
    chat: Chat | None = None,
) -> None:
    """A folder that transformers loads as it is; written beside and renamed, so it is whole or not there.

    `tokenizer` is a tokenizer.json, or "bytes". What was read in a narrower type than float32 is, written in that type,
    bit by bit what it was. Dropout is written as 0: a training says what its own is. `chat`: how it is spoken with.
    """
    if dtype not in TYPES:
        raise unknown("precision", dtype, TYPES)
    family = family_of(config)
    check_params(config, params, dtype)
    described = None if tokenizer is None else _described(tokenizer)
    words = None if tokenizer is None else _checked_tokenizer(tokenizer, config)
    with made_whole(free_folder(folder)) as beside:
        # Else each family's own, whatever the vocabulary.
        ends: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id"))
        if words is not None:
            ends = {"bos_token_id": words.end if words.begin is None else words.begin, "eos_token_id": words.end}
        narrow = {} if dtype == "float32" else dict.fromkeys(("torch_dtype", "dtype"), dtype)
        write_json(beside / "config.json", family.described(config) | ends | narrow)
        theirs = their_tensors(config, params)
        write_safetensors(beside / "model.safetensors", theirs, dtype=TYPES[dtype], metadata={"format": "pt"})
        if described is not None and words is not None:
            write_file(beside / "tokenizer.json", [described])
            about, stops = _tokenizer_config(config, words), words.stops
            if chat is not None:
                about |= {**chat.tokens, "chat_template": chat.template}
                stops = tuple(dict.fromkeys((*stops, *chat.ends)))
            if chat is not None or len(stops) > 1:
                write_json(beside / GENERATION, {"eos_token_id": list(stops)})
            # To bytes a text that spells the end token out is like any other.
            if tokenizer == "bytes" and chat is None:
                about["split_special_tokens"] = True
            write_json(beside / NAMES, about)


def their_tensors(config: Architecture, params: Mapping[str, Array]) -> dict[str, Array]:
    """Our weights as transformers names and shapes them: views of ours."""
    family = family_of(config)
    return {
        piece.theirs if piece.theirs == HEAD else family.prefix + piece.theirs: piece.of(array)
        for name, array in params.items()
        for piece in family.pieces(config, name)
    }


def _shapes(config: Architecture) -> dict[str, Shape]:
    return {
        weight.name: weight.shape for weight in transformer.evaluation(Preset("gpt2", config), batch=1, time=1).weights
    }


def _check_described(folder: Path, family: Family, config: Architecture) -> None:
    """A configuration alone could ask for any amount of memory: it must have the tensors to show for it."""
    stored = stored_tensors(folder, family)
    if family.least * config.layers > len(stored):
        raise TapelessError(
            f"{folder / 'config.json'} has {family.layers}={config.layers}, {family.least} tensors each, "
            f"but {folder} holds {len(stored)} tensors in all."
        )
    _matched(folder, family, stored, config, _shapes(config))


def _matched(
    folder: Path, family: Family, stored: Mapping[str, Stored], config: Architecture, shapes: Mapping[str, Shape]
) -> dict[str, tuple[str, Piece]]:
    """For each of their tensors the weight of ours that it is part of, and which part: none missing, none left over,
    each of the right shape and a type we read."""
    places = {piece.theirs: (name, piece) for name in shapes for piece in family.pieces(config, name)}
    missing = places.keys() - stored.keys()
    if missing:
        raise TapelessError(f"{folder} lacks {_some(missing)}: save the whole model again.")
    # A tied head may be stored all the same; whether it is the embedding is seen when its values are read.
    extra = stored.keys() - places.keys() - {HEAD}
    if extra:
        raise TapelessError(f"{folder} holds {_some(extra)}, which this {family.title} has no place for.")
    for plain, tensor in stored.items():
        name, piece = places[plain if plain in places else family.tokens]
        shape, array = piece.of(np.broadcast_to(np.float32(0), shapes[name])).shape, tensor.read()
        if array.shape != shape:
            raise TapelessError(
                f"{tensor.path} has {show(tensor.name)} of shape {spelled(array.shape)}, "
                f"but the model needs {spelled(shape)}: config.json and weights do not belong together."
            )
        if array.dtype.kind != "f":
            raise TapelessError(
                f"{tensor.path} has {show(tensor.name)} as {array.dtype}: weights must be floating-point."
            )
    return places


def _some(names: set[str]) -> str:
    first, more = show(min(names)), len(names) - 1
    return f"the tensor {first}" + (f" and {more} more" if more else "")


def check_finite(what: str, values: Array, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(dtype, copy=False))
    if wrong.any():
        value = values[wrong][0]
        reason = f"too large for {np.dtype(dtype)}" if np.isfinite(value) else "not a finite number"
        raise TapelessError(f"{what} with {value} inside, {reason}: such a model computes nothing.")


def check_fits(name: str, values: Array, dtype: str) -> None:
    check_finite(name, values, "<f4")
    most = largest(dtype)
    if np.abs(values).max(initial=0) > most:
        raise TapelessError(f"{name} holds {values.flat[np.abs(values).argmax()]}, more than the {most:g} of {dtype}.")


def _check_tied(folder: Path, head: Stored, tokens: Stored) -> None:
    for ours, theirs in zip(_rows(tokens.read()), _rows(head.read()), strict=True):
        if not np.array_equal(ours, theirs):
            raise TapelessError(
                f"{folder} ties the head to the embedding, but its {head.name} differs from {tokens.name}: "
                f"set tie_word_embeddings to false in config.json, or leave {head.name} out."
            )


def check_params(config: Architecture, params: Mapping[str, Array], dtype: str) -> None:
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
            check_fits(name, values, dtype)


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


def _checked_tokenizer(spec: str | Path, config: Architecture) -> Tokenizer:
    words = load_tokenizer(spec)
    if words.vocab > config.vocab:
        raise TapelessError(
            f"{spec} has the token id {words.vocab - 1}, but this model knows {config.vocab} words: it is not the "
            f"tokenizer this model was trained with."
        )
    return words


def free_folder(folder: Path) -> Path:
    """Where the folder really goes: nothing may be there, or an empty folder."""
    try:
        target = folder.resolve()
        taken = any(target.iterdir()) if target.is_dir() else target.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise TapelessError(f"cannot write {folder}: {getattr(error, 'strerror', error)}.") from None
    if taken:
        raise TapelessError(f"{folder} exists already and is not an empty folder: choose another.")
    return target


def _tokenizer_config(config: Architecture, words: Tokenizer) -> dict[str, Any]:
    """PreTrainedTokenizerFast takes tokenizer.json as it is, where GPT-2's own class would take parts of it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context,
        "clean_up_tokenization_spaces": False,
        "bos_token": words.end_text,  # where there is no other, a text begins behind the end of the last
        **words.named,
        "eos_token": words.end_text,
    }


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, [json.dumps(value, indent=2).encode() + b"\n"])
