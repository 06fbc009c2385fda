"""GPT-2's config.json and tensors: ours under other names, with no transposition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.models.config import Architecture
from tapeless.weights.family import Family, Fields, Piece, check_fixed, flag, number, size
from tapeless.weights.tensors import show

CLASSES = {"gpt2": "GPT2LMHeadModel"}
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
ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "tanh": "tanh"}
THEIR_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh"}
FIXED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
# What a model must be to be a GPT-2.
GPT2 = {
    "placement": "pre",
    "positions": "learned",
    "causal": True,
    "attention_bias": True,
    "projection_bias": True,
    "mlp_bias": True,
    "norm_kind": "layernorm",
    "query_key_norm": False,
    "window": 0,
    "features": 0,
    "readout": "all",
    "loss": "cross_entropy",
}


def _read(where: Path, fields: Fields) -> Architecture:
    """Dropout is not read: it is a matter of training."""
    check_fixed(where, fields, FIXED)
    config = Architecture(
        tied=flag(where, fields, "tie_word_embeddings", True),
        norm_eps=number(where, fields, "layer_norm_epsilon", 1e-5, below=1),
        layers=size(where, fields, "n_layer"),
        channels=size(where, fields, "n_embd"),
        heads=size(where, fields, "n_head"),
        vocab=size(where, fields, "vocab_size"),
        context=size(where, fields, "n_positions" if "n_positions" in fields else "n_ctx"),
        hidden=None if fields.get("n_inner") is None else size(where, fields, "n_inner"),
        activation=_activation(where, fields.get("activation_function", "gelu_new")),
    )
    if config.channels % config.heads:
        raise TapelessError(
            f"{where} has n_embd={config.channels}, which n_head={config.heads} does not divide: one of them is wrong."
        )
    return config


def _activation(where: Path, name: Any) -> str:
    if name == "gelu":
        raise TapelessError(
            f"{where} has activation_function='gelu', the exact form: tapeless has its tanh form only ('gelu_new')."
        )
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise TapelessError(f"{where} has activation_function={show(name)}: only {', '.join(ACTIVATIONS)} can be read.")
    return ACTIVATIONS[name]


def _fits(config: Architecture) -> str | None:
    wanted = GPT2 | {"kv_heads": config.heads, "head_width": config.channels // config.heads}
    found = {"kv_heads": config.key_heads, "head_width": config.head_channels}
    for name, value in wanted.items():
        mine = found.get(name, getattr(config, name))
        if mine != value:
            return f"this model has {name}={mine!r}, and a GPT-2 has {name}={value!r}"
    return None if config.activation in THEIR_ACTIVATIONS else f"a GPT-2 has no {config.activation}"


def _described(config: Architecture) -> dict[str, Any]:
    """Dropout is written as 0, which is how the model was trained."""
    return {
        "architectures": [CLASSES["gpt2"]],
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
    }


def _pieces(config: Architecture, ours: str) -> list[Piece]:
    theirs = ".".join(PARTS.get(part, part) for part in ours.split("."))
    return [Piece(theirs, 0, 1 << 62)]  # all columns, however many


GPT2_FAMILY = Family(
    title="GPT-2",
    classes=CLASSES,
    prefix="transformer.",
    tokens="wte.weight",
    ignored=r"h\.\d+\.attn\.(bias|masked_bias)",
    layers="n_layer",
    least=12,
    read=_read,
    fits=_fits,
    described=_described,
    pieces=_pieces,
)
