"""Llama, Mistral, Qwen2 and Qwen3: their config.json and tensors.

Their matrices are (out, in) and each projection has its own; ours are (in, out), with queries, keys and values side by
side, and so are gate and up.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import inf
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.models.config import Architecture
from tapeless.weights.family import Family, Fields, Piece, check_fixed, flag, number, size
from tapeless.weights.tensors import show

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
FIXED = {"hidden_act": "silu", "partial_rotary_factor": 1.0}
QWEN_FIXED = {"use_sliding_window": False}
QWEN3_HEAD = 128  # a head's width where a Qwen3 does not say it
MISTRAL_WINDOW = 4096  # and a Mistral's window; null is none
# What all of them have in common.
COMMON = {
    "placement": "pre",
    "positions": "rotary",
    "causal": True,
    "norm_kind": "rmsnorm",
    "activation": "swiglu",
    "features": 0,
    "readout": "all",
    "loss": "cross_entropy",
}
NAMES = {
    "tokens": "embed_tokens",
    "norm": "norm",
    "head": "lm_head",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.proj": "self_attn.o_proj",
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": "mlp.down_proj",
}
STRAIGHT = ("tokens", "head")  # words × channels on both sides


def _read(where: Path, fields: Fields) -> Architecture:
    kind = fields["model_type"]
    qwen = kind in ("qwen2", "qwen3")
    check_fixed(where, fields, FIXED | (QWEN_FIXED if qwen else {}))
    heads, channels = size(where, fields, "num_attention_heads"), size(where, fields, "hidden_size")
    given = {"head_dim": QWEN3_HEAD if kind == "qwen3" else None} | dict(fields)
    width = None if given["head_dim"] is None else size(where, given, "head_dim")
    if width is None and channels % heads:
        raise TapelessError(
            f"{where} has hidden_size={channels}, which num_attention_heads={heads} does not divide, and no head_dim."
        )
    keys = size(where, {"num_key_value_heads": heads} | dict(fields), "num_key_value_heads")
    if heads % keys:
        raise TapelessError(
            f"{where} has num_attention_heads={heads}, which cannot share num_key_value_heads={keys}: one is wrong."
        )
    bias = kind == "qwen2" or (kind != "mistral" and flag(where, fields, "attention_bias", False))
    return Architecture(
        layers=size(where, fields, "num_hidden_layers"),
        channels=channels,
        heads=heads,
        kv_heads=keys,
        head_width=width,
        hidden=size(where, fields, "intermediate_size"),
        vocab=size(where, fields, "vocab_size"),
        context=size(where, fields, "max_position_embeddings"),
        norm_kind="rmsnorm",
        norm_eps=number(where, fields, "rms_norm_eps", 1e-6, below=1),
        activation="swiglu",
        positions="rotary",
        **_rope(where, fields),
        query_key_norm=kind == "qwen3",
        window=_window(where, fields) if kind == "mistral" else 0,
        tied=flag(where, fields, "tie_word_embeddings", False),
        attention_bias=bias,
        projection_bias=kind != "qwen2",
        mlp_bias=kind == "llama" and flag(where, fields, "mlp_bias", False),
    )


def _window(where: Path, fields: Fields) -> int:
    if fields.get("sliding_window", MISTRAL_WINDOW) is None:
        return 0
    return size(where, {"sliding_window": MISTRAL_WINDOW} | dict(fields), "sliding_window")


def _rope(where: Path, fields: Fields) -> dict[str, Any]:
    """Newer files have all of it in rope_parameters, older ones in rope_theta and rope_scaling."""
    scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise TapelessError(f"{where} has rope_scaling={show(scaling)}: it must be a map, or null.")
    base = number(where, {"rope_theta": fields.get("rope_theta", 10000.0)} | scaling, "rope_theta", None, below=inf)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    check_fixed(where, scaling, {"partial_rotary_factor": 1.0})
    if kind == "default":
        return {"rope_base": base}
    if kind == "linear":
        return {
            "rope_base": base,
            "rope_scaling": "linear",
            "rope_factor": number(where, scaling, "factor", None, below=inf),
        }
    if kind == "llama3":
        return {
            "rope_base": base,
            "rope_scaling": "llama3",
            "rope_factor": number(where, scaling, "factor", None, below=inf),
            "rope_low": number(where, scaling, "low_freq_factor", None, below=inf),
            "rope_high": number(where, scaling, "high_freq_factor", None, below=inf),
            "rope_old_context": size(where, scaling, "original_max_position_embeddings"),
        }
    raise TapelessError(f"{where} has rope scaling of the kind {show(kind)}: only linear and llama3 can be read.")


def _kind(config: Architecture) -> str:
    """The one among them that a model is, by what sets it apart."""
    if config.query_key_norm:
        return "qwen3"
    if config.attention_bias and not config.projection_bias:
        return "qwen2"
    return "mistral" if config.window else "llama"


def _fits(config: Architecture) -> str | None:
    for name, value in COMMON.items():
        if getattr(config, name) != value:
            return f"this model has {name}={getattr(config, name)!r}, and a Llama has {name}={value!r}"
    kind = _kind(config)
    own: dict[str, dict[str, Any]] = {
        "llama": {},
        "mistral": {"attention_bias": False, "mlp_bias": False},
        "qwen2": {"window": 0, "mlp_bias": False},
        "qwen3": {"window": 0, "mlp_bias": False, "projection_bias": True},
    }
    for name, value in own[kind].items():
        if getattr(config, name) != value:
            return f"this model has {name}={getattr(config, name)!r}, and a {CLASSES[kind]} has {name}={value!r}"
    return None


def _described(config: Architecture) -> dict[str, Any]:
    """In the older spelling of rotary positions, which every version of transformers reads."""
    kind = _kind(config)
    scaling = None
    if config.rope_scaling != "none":
        scaling = {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if scaling and config.rope_scaling == "llama3":
        scaling |= {
            "low_freq_factor": config.rope_low,
            "high_freq_factor": config.rope_high,
            "original_max_position_embeddings": config.rope_old_context,
        }
    own: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias},
        "mistral": {"sliding_window": config.window or None},
        "qwen2": {"use_sliding_window": False},
        "qwen3": {"use_sliding_window": False, "attention_bias": config.attention_bias},
    }
    # A Qwen2 has no such field of its own, and transformers honours it where it is there.
    plain = kind == "qwen2" and config.head_channels * config.heads == config.channels
    width = {} if plain else {"head_dim": config.head_channels}
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "num_hidden_layers": config.layers,
        "hidden_size": config.channels,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        **width,
        "intermediate_size": config.width,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tied,
        "attention_dropout": 0.0,
        **own[kind],
    }


def _pieces(config: Architecture, ours: str) -> list[Piece]:
    path, _, last = ours.rpartition(".")  # weight or bias
    block = ""
    if path.startswith("blocks."):
        _, number_, path = path.split(".", 2)
        block = f"layers.{number_}."
    theirs = NAMES[path]
    names = (theirs,) if isinstance(theirs, str) else theirs
    transposed = last == "weight" and path not in STRAIGHT and "norm" not in path
    queries, keys = config.heads * config.head_channels, config.key_heads * config.head_channels
    widths = {"attn.qkv": (queries, keys, keys), "mlp.gate_up": (config.width, config.width)}.get(path, (1 << 62,))
    edges = pairwise(accumulate(widths, initial=0))
    return [
        Piece(f"{block}{name}.{last}", start, stop, transposed)
        for name, (start, stop) in zip(names, edges, strict=True)
    ]


LLAMA_FAMILY = Family(
    title="model",
    classes=CLASSES,
    prefix="model.",
    tokens="embed_tokens.weight",
    ignored=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    layers="num_hidden_layers",
    least=9,
    read=_read,
    fits=_fits,
    described=_described,
    pieces=_pieces,
)
