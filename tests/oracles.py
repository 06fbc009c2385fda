"""The same transformers written for PyTorch, from its own layers: gradients come from its tape, not from ours.

Only the names of the weights are shared. A weight that the configuration does not call for is never read here, so
autograd refuses it as unused, and one that is missing is a KeyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)

from tapeless.check.complex_step import relative_error
from tapeless.check.definitions import turning_rates
from tapeless.check.tolerances import TOLERANCES
from tapeless.inputs import Packed, unpacked
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array
from tapeless.ops.dropout.reference import factors

Tensors = Mapping[str, torch.Tensor]
Drop = Callable[[int, torch.Tensor], torch.Tensor]  # by site: 0 after the embedding, then two for every block

ACTIVATIONS = {"gelu": partial(F.gelu, approximate="tanh"), "relu": F.relu, "tanh": torch.tanh}


def disagreements(oracle: str, found: Mapping[str, Any], true: Mapping[str, Any]) -> dict[str, float]:
    """The tensors outside the oracle's tolerance, with their errors: infinite for a missing or misshapen one."""
    errors = {}
    for name in found.keys() | true.keys():
        if name not in found or name not in true or np.shape(found[name]) != np.shape(true[name]):
            errors[name] = inf  # relative_error would broadcast, and call a wrong shape right
        else:
            errors[name] = relative_error(np.asarray(found[name]), np.asarray(true[name]))
    return {name: error for name, error in errors.items() if not error <= TOLERANCES[oracle]}


def leaves(params: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Copies that record gradients, under the same names, all of one type: frozen matrices may be bfloat16."""
    wide = next(array.dtype for array in params.values() if array.dtype.kind == "f")
    return {name: torch.tensor(np.asarray(array, wide), requires_grad=True) for name, array in params.items()}


def torch_gradients(loss: torch.Tensor, params: Tensors) -> dict[str, torch.Tensor]:
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def torch_loss_and_logits(
    config: Architecture,
    params: Tensors,
    inputs: Array | Packed,
    targets: Array,
    class_weights: tuple[float, ...] | None = None,
    drop: Drop = lambda site, x: x,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss over the targets that are not −1, and the score of every word."""
    tokens, segments = unpacked(inputs)
    x = drop(0, _embedded(config, params, torch.from_numpy(tokens)))
    rows = _rows(config, x, segments)
    for layer in range(config.layers):
        block = _pre_norm_block if config.placement == "pre" else _post_norm_block
        drops = partial(drop, 2 * layer + 1), partial(drop, 2 * layer + 2)
        x = block(config, params, f"blocks.{layer}", x, rows, *drops)
    if config.placement == "pre":
        x = _norm(config, params, "norm", x)
    if config.readout == "last":
        x = x[:, -1]
    wanted = torch.from_numpy(targets)
    if config.loss == "squared_error":
        # The embedding a state should come near is where it is: only the state moves.
        table, counted = params["tokens.weight"].detach(), wanted != -1
        scores = -torch.cdist(x, table, compute_mode="donot_use_mm_for_euclid_dist").square()
        return F.mse_loss(x[counted], F.embedding(wanted[counted], table)), scores
    logits = F.linear(x, params["tokens.weight" if config.tied else "head.weight"])
    weights = torch.tensor(class_weights, dtype=logits.dtype) if class_weights else None
    return F.cross_entropy(logits.flatten(end_dim=-2), wanted.flatten(), weights, ignore_index=-1), logits


def _embedded(config: Architecture, params: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    x = _linear(params, "input", inputs) if config.features else F.embedding(inputs, params["tokens.weight"])
    time = torch.arange(inputs.shape[1])
    if config.positions == "learned":
        return x + F.embedding(time, params["positions.weight"])
    if config.positions == "rotary":
        return x
    rates = torch.exp(torch.arange(0, config.channels, 2, dtype=x.dtype) * (-log(10000.0) / config.channels))
    angles = torch.outer(time.to(x.dtype), rates)
    return x + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, : config.channels]


def masked(config: Architecture, rate: float, seed: int, draws: int) -> Drop:
    """Leaves out what a model does, with the same random numbers. Where only the last position is read, the last block
    has them for that alone."""

    def drop(site: int, x: torch.Tensor) -> torch.Tensor:
        alone = config.readout == "last" and site > 2 * config.layers - 2
        rows = x[:, -1:] if alone else x
        kept = factors(rows.numel(), np.array([seed]), np.array([draws]), rate, site) != 0
        mask = torch.zeros(x.shape, dtype=x.dtype)
        mask[:, -rows.shape[1] :] = torch.from_numpy(kept).reshape(rows.shape).to(x.dtype)
        return x * mask / (1 - rate)

    return drop


class Rows(NamedTuple):
    """What every block needs to know of where tokens stand."""

    seen: torch.Tensor  # which key each query may see, (B, 1, T, T)
    cos: torch.Tensor  # (B, 1, T, head width)
    sin: torch.Tensor


def _rows(config: Architecture, x: torch.Tensor, segments: Array | None) -> Rows:
    batch, time = x.shape[:2]
    own = torch.arange(time)
    ids = torch.zeros(batch, time) if segments is None else torch.from_numpy(segments)
    seen = ids[:, :, None] == ids[:, None, :]
    if config.causal:
        seen = seen & (own <= own[:, None])
    if config.window:
        seen = seen & (own[:, None] - own < config.window)
    # A token's place: how many of its own document stand before it.
    places = ((ids[:, :, None] == ids[:, None, :]) & (own < own[:, None])).sum(-1).to(x.dtype)
    half = config.head_channels // 2
    bands = (config.rope_scaling, config.rope_factor, config.rope_low, config.rope_high, config.rope_old_context)
    rates = torch.tensor(turning_rates(half, config.rope_base, *bands), dtype=x.dtype).repeat(2)
    angles = (places[..., None] * rates)[:, None]
    return Rows(seen[:, None], angles.cos(), angles.sin())


def _pre_norm_block(
    config: Architecture, params: Tensors, name: str, x: torch.Tensor, rows: Rows, drop1: Any, drop2: Any
) -> torch.Tensor:
    x = x + drop1(_attention(config, params, f"{name}.attn", _norm(config, params, f"{name}.norm1", x), rows))
    return x + drop2(_feed_forward(config, params, f"{name}.mlp", _norm(config, params, f"{name}.norm2", x)))


def _post_norm_block(
    config: Architecture, params: Tensors, name: str, x: torch.Tensor, rows: Rows, drop1: Any, drop2: Any
) -> torch.Tensor:
    x = _norm(config, params, f"{name}.norm1", x + drop1(_attention(config, params, f"{name}.attn", x, rows)))
    return _norm(config, params, f"{name}.norm2", x + drop2(_feed_forward(config, params, f"{name}.mlp", x)))


def _attention(config: Architecture, params: Tensors, name: str, x: torch.Tensor, rows: Rows) -> torch.Tensor:
    qkv = _linear(params, f"{name}.qkv", x, bias=config.attention_bias)
    width, heads = config.head_channels, (config.heads, config.key_heads, config.key_heads)
    split = qkv.split([each * width for each in heads], dim=-1)
    q, k, v = (part.unflatten(-1, (each, width)).transpose(1, 2) for part, each in zip(split, heads, strict=True))
    if config.query_key_norm:
        q = F.rms_norm(q, (width,), params[f"{name}.q_norm.weight"], eps=config.norm_eps)
        k = F.rms_norm(k, (width,), params[f"{name}.k_norm.weight"], eps=config.norm_eps)
    if config.positions == "rotary":
        q, k = (each * rows.cos + _half_turned(each) * rows.sin for each in (q, k))
    mix = F.scaled_dot_product_attention(q, k, v, attn_mask=rows.seen, enable_gqa=True)
    bias = config.attention_bias and config.projection_bias
    return _linear(params, f"{name}.proj", mix.transpose(1, 2).flatten(-2), bias=bias)


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _feed_forward(config: Architecture, params: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    if config.activation == "swiglu":
        gate, up = _linear(params, f"{name}.gate_up", x, bias=config.mlp_bias).chunk(2, dim=-1)
        hidden = F.silu(gate) * up
    else:
        hidden = ACTIVATIONS[config.activation](_linear(params, f"{name}.up", x, bias=config.mlp_bias))
    return _linear(params, f"{name}.down", hidden, bias=config.mlp_bias)


def _linear(params: Tensors, name: str, x: torch.Tensor, bias: bool = True) -> torch.Tensor:
    return F.linear(x, params[f"{name}.weight"].T, params[f"{name}.bias"] if bias else None)


def _norm(config: Architecture, params: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    if config.norm_kind == "rmsnorm":
        return F.rms_norm(x, (config.channels,), params[f"{name}.weight"], eps=config.norm_eps)
    return F.layer_norm(x, (config.channels,), params[f"{name}.weight"], params[f"{name}.bias"], eps=config.norm_eps)
