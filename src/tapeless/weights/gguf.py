"""A model as one GGUF file, which llama.cpp and Ollama run: by the `gguf` package, whose table of names it follows.

Each architecture of llama.cpp has its rules. Its `llama` (Llama, Mistral) turns neighbouring channels of queries and
keys together, where the Hugging Face layout turns the two halves of a head: their rows are put into that order. Norms,
biases and positions stay float32 whatever the rest is. Llama 3's slower turning is a tensor of divisors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files.disk import made_whole
from tapeless.models.config import Architecture
from tapeless.models.parts.rotary import turning_rates
from tapeless.ops.contract import Array
from tapeless.tasks.chat.template import Chat
from tapeless.weights.hugging_face import TYPES, check_params, family_of, their_tensors
from tapeless.weights.vocabulary import read_vocabulary

ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
SUFFIX = ".gguf"
STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "bfloat16": "MOSTLY_BF16"}
ALWAYS_WIDE = ("position_embd.weight", "rope_freqs.weight")


def write_gguf(
    path: Path,
    name: str,
    config: Architecture,
    params: Mapping[str, Array],
    tokenizer: str | Path | None,
    dtype: str = "float32",
    chat: Chat | None = None,
) -> None:
    """The whole file or none. `name`: what the model is called in it. A file that runs needs a tokenizer."""
    if dtype not in TYPES:
        raise unknown("precision", dtype, TYPES)
    try:
        import gguf
    except ModuleNotFoundError:
        raise TapelessError("writing GGUF needs a package: pip install 'tapeless[gguf]'.") from None
    if path.suffix != SUFFIX:
        raise TapelessError(f"a GGUF file is called …{SUFFIX}, and {path.name!r} is not: name it so.")
    if tokenizer is None:
        raise TapelessError("this run learned from bare tokens, and GGUF needs a tokenizer: there is none to write.")
    family = family_of(config)
    check_params(config, params, dtype)
    kind = family.described(config)["model_type"]
    _check_known(kind, config)
    words = read_vocabulary(tokenizer, config.vocab, chat)
    if os.path.lexists(path):
        raise TapelessError(f"{path} exists already, and is not written over: choose another name.")
    with made_whole(path, folder=False) as beside:
        writer = gguf.GGUFWriter(beside, ARCHITECTURES[kind])
        words["token_types"] = [gguf.TokenType[each] for each in words["token_types"]]
        for key, value in (_described(gguf, name, kind, config, dtype) | words).items():
            if value is not None:
                getattr(writer, f"add_{key}")(value)
        tensors = list(_tensors(gguf, kind, config, params))
        for title, array in tensors:
            stored = _stored(gguf, title, array, dtype)
            shape = array.shape if stored.name != "BF16" else (*array.shape[:-1], 2 * array.shape[-1])
            width = 4 if stored.name == "F32" else 2
            own = np.dtype({"F32": "f4", "F16": "f2", "BF16": "u1"}[stored.name])
            writer.add_tensor_info(title, shape, own, array.size * width, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for title, array in tensors:  # one at a time is copied
            writer.write_tensor_data(
                gguf.quantize(np.ascontiguousarray(array, "<f4"), _stored(gguf, title, array, dtype))
            )
        writer.close()


def _check_known(kind: str, config: Architecture) -> None:
    """What llama.cpp has no place for in an architecture."""
    if kind == "qwen3" and config.attention_bias:
        raise TapelessError(
            "llama.cpp's qwen3 has no biases in its attention, and this model has: it cannot be written."
        )
    if kind == "qwen2" and config.heads * config.head_channels != config.channels:
        raise TapelessError(
            f"llama.cpp's qwen2 divides its channels among its heads, and this model has {config.heads} heads of "
            f"{config.head_channels} in {config.channels} channels: it cannot be written."
        )
    if config.rope_scaling == "llama3" and ARCHITECTURES[kind] != "llama":
        raise TapelessError(f"llama.cpp's {kind} does not know rope_scaling='llama3': it cannot be written.")


def _stored(gguf: Any, title: str, array: Array, dtype: str) -> Any:
    wide = array.ndim == 1 or title in ALWAYS_WIDE
    return gguf.GGMLQuantizationType["F32" if wide else STORED[dtype]]


def _described(gguf: Any, name: str, kind: str, config: Architecture, dtype: str) -> dict[str, Any]:
    """What the file says of the model, by the names that its writer has."""
    said = {
        "name": name,
        "file_type": gguf.LlamaFileType[FILE_TYPES[dtype]],
        "block_count": config.layers,
        # llama.cpp's `llama` knows no window. Within one all that came before is seen, so there it is told to end.
        "context_length": min(config.context, config.window or config.context),
        "embedding_length": config.channels,
        "feed_forward_length": config.width,
        "head_count": config.heads,
    }
    if kind == "gpt2":
        return said | {"layer_norm_eps": config.norm_eps}
    linear = config.rope_scaling == "linear"
    return said | {
        "vocab_size": config.vocab,
        "head_count_kv": config.key_heads,
        "key_length": config.head_channels,
        "value_length": config.head_channels,
        "layer_norm_rms_eps": config.norm_eps,
        "rope_freq_base": config.rope_base,
        "rope_dimension_count": config.head_channels,
        "rope_scaling_type": gguf.RopeScalingType.LINEAR if linear else None,
        "rope_scaling_factor": config.rope_factor if linear else None,
    }


def _tensors(gguf: Any, kind: str, config: Architecture, params: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[kind].upper()], config.layers)
    if config.rope_scaling == "llama3":
        yield "rope_freqs.weight", rope_divisors(config)
    for theirs, array in their_tensors(config, params).items():
        title = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if title is None:
            raise TapelessError(f"GGUF has no name for {theirs} of this {kind}: it cannot be written.")
        if kind == "gpt2" and array.ndim == 2 and ".h." in theirs:
            array = array.T  # theirs are (in, out), as ours are
        if ARCHITECTURES[kind] == "llama":
            if ".q_proj." in theirs:
                array = neighbouring(array, config.heads)
            elif ".k_proj." in theirs:
                array = neighbouring(array, config.key_heads)
        yield title, array


def neighbouring(rows: Array, heads: int) -> Array:
    """Of each head, row j of the first half and row j of the second beside each other: they turn together."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.swapaxes(halves, 1, 2).reshape(rows.shape)


def rope_divisors(config: Architecture) -> Array:
    """By what llama.cpp divides the plain rate of each pair of channels."""
    width = config.head_channels
    plain = config.rope_base ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    return (plain / turning_rates(config)).astype(np.float32)
