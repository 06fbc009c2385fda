"""The same transformers written for PyTorch, from its own layers: gradients come from its tape, not from ours.

Only the names of the weights are shared. A weight that the configuration does not call for is never read here, so
autograd refuses it as unused, and one that is missing is a KeyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, log
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)

from tapeless.check.complex_step import relative_error
from tapeless.check.tolerances import TOLERANCES
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
    """Copies that record gradients, under the same names."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in params.items()}


def torch_gradients(loss: torch.Tensor, params: Tensors) -> dict[str, torch.Tensor]:
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def torch_loss_and_logits(
    config: Architecture,
    params: Tensors,
    inputs: Array,
    targets: Array,
    class_weights: tuple[float, ...] | None = None,
    drop: Drop = lambda site, x: x,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss over the targets that are not −1, and the score of every word."""
    x = drop(0, _embedded(config, params, torch.from_numpy(inputs)))
    for layer in range(config.layers):
        block = _pre_norm_block if config.placement == "pre" else _post_norm_block
        x = block(config, params, f"blocks.{layer}", x, partial(drop, 2 * layer + 1), partial(drop, 2 * layer + 2))
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


def _pre_norm_block(
    config: Architecture, params: Tensors, name: str, x: torch.Tensor, drop1: Any, drop2: Any
) -> torch.Tensor:
    x = x + drop1(_attention(config, params, f"{name}.attn", _norm(config, params, f"{name}.norm1", x)))
    return x + drop2(_feed_forward(config, params, f"{name}.mlp", _norm(config, params, f"{name}.norm2", x)))


def _post_norm_block(
    config: Architecture, params: Tensors, name: str, x: torch.Tensor, drop1: Any, drop2: Any
) -> torch.Tensor:
    x = _norm(config, params, f"{name}.norm1", x + drop1(_attention(config, params, f"{name}.attn", x)))
    return _norm(config, params, f"{name}.norm2", x + drop2(_feed_forward(config, params, f"{name}.mlp", x)))


def _attention(config: Architecture, params: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    qkv = _linear(params, f"{name}.qkv", x, bias=config.attention_bias)
    q, k, v = (part.unflatten(-1, (config.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    mix = F.scaled_dot_product_attention(q, k, v, is_causal=config.causal)
    return _linear(params, f"{name}.proj", mix.transpose(1, 2).flatten(-2), bias=config.attention_bias)


def _feed_forward(config: Architecture, params: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    hidden = ACTIVATIONS[config.activation](_linear(params, f"{name}.up", x))
    return _linear(params, f"{name}.down", hidden)


def _linear(params: Tensors, name: str, x: torch.Tensor, bias: bool = True) -> torch.Tensor:
    return F.linear(x, params[f"{name}.weight"].T, params[f"{name}.bias"] if bias else None)


def _norm(config: Architecture, params: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (config.channels,), params[f"{name}.weight"], params[f"{name}.bias"], eps=config.norm_eps)
