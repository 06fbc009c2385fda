"""Every op that torch has, by torch in float32: forward by its functions, backward by its autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tapeless.backends.backend import backend_named
from tapeless.check.ranges import VALUES, RangeCase, RangeError, Trial, cases, judge
from tapeless.ops.contract import Array

cpu = backend_named("cpu")

Tensors = dict[str, Any]


def _heads(x: Any, heads: int) -> Any:
    batch, time, channels = x.shape
    return x.reshape(batch, time, heads, channels // heads).transpose(1, 2)


def _shared(x: Any, heads: int) -> Any:
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def _attention(t: Tensors, case: RangeCase) -> Tensors:
    heads, starts = case.trial.example["lse"][1], case.numbers.get("starts")
    width = t["q"].shape[2] // heads
    q = _heads(t["q"], heads)
    k, v = (_shared(_heads(t[name], t[name].shape[2] // width), heads) for name in "kv")
    scores = q @ k.transpose(2, 3) / sqrt(q.shape[3])
    if case.trial.example["causal"]:
        queries, keys = scores.shape[2:]
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), -torch.inf)
    if case.trial.example["window"] or starts is not None:
        queries, keys = scores.shape[2:]
        own, key = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
        if case.trial.example["window"]:
            scores = scores.masked_fill(key <= own - case.trial.example["window"], -torch.inf)
        if starts is not None:
            first = torch.minimum(torch.tensor(starts)[:, None, :, None], own)
            scores = scores.masked_fill(key < first, -torch.inf)
    y = torch.softmax(scores, -1) @ v
    return {"y": y.transpose(1, 2).reshape(t["q"].shape), "lse": torch.logsumexp(scores, -1)}


def _cached_attention(t: Tensors, case: RangeCase) -> Tensors:
    width = t["keys"].shape[3]
    heads = t["q"].shape[2] // width
    keys, values = (_shared(t[name], heads) for name in ("keys", "values"))
    start, time = int(case.numbers["position"][0]), t["q"].shape[1]
    seen = start + time
    scores = _heads(t["q"], heads) @ keys[:, :, :seen].transpose(2, 3) / sqrt(width)
    scores = scores.masked_fill(~torch.ones(time, seen, dtype=torch.bool).tril(start), -torch.inf)
    if case.trial.example["window"]:
        past = torch.ones(time, seen, dtype=torch.bool).tril(start - case.trial.example["window"])
        scores = scores.masked_fill(past, -torch.inf)
    y = torch.softmax(scores, -1) @ values[:, :, :seen]
    return {"y": y.transpose(1, 2).reshape(t["q"].shape)}


def _layernorm(t: Tensors, case: RangeCase) -> Tensors:
    y, mean, rstd = torch.native_layer_norm(
        t["x"], (t["x"].shape[1],), t["weight"], t["bias"], case.trial.example["eps"]
    )
    return {"y": y, "mean": mean[:, 0], "rstd": rstd[:, 0]}


def _rmsnorm(t: Tensors, case: RangeCase) -> Tensors:
    x = t["x"].reshape(*case.trial.example["rstd"], -1)
    rstd = torch.rsqrt((x * x).mean(-1) + case.trial.example["eps"])
    y = functional.rms_norm(x, (x.shape[2],), t["weight"], case.trial.example["eps"])
    return {"y": y.reshape(t["x"].shape), "rstd": rstd}


def _rope(t: Tensors, case: RangeCase) -> Tensors:
    x, time, pairs = t["x"] if "x" in t else t["dy"], case.trial.example["x"].shape[1], t["cos"].shape[2]
    first, second = x.reshape(*x.shape[:2], -1, 2, pairs).unbind(3)
    cos, sin = (t[name].detach()[:, -time:, None] for name in ("cos", "sin"))
    return {"y": torch.stack([first * cos - second * sin, second * cos + first * sin], 3).reshape(x.shape)}


def _classifier(t: Tensors, case: RangeCase) -> Tensors:
    targets, count = torch.tensor(case.numbers["targets"]), float(case.numbers["count"][0])
    z = t["x"] @ t["weight"].T
    loss = functional.cross_entropy(z, targets, t.get("class_weights"), reduction="sum", ignore_index=-1) / count
    return {"loss": loss.reshape(1)}


def _squared_error(t: Tensors, case: RangeCase) -> Tensors:
    targets, count = torch.tensor(case.numbers["targets"]), float(case.numbers["count"][0])
    kept = targets >= 0
    loss = functional.mse_loss(t["x"][kept], t["table"].detach()[targets[kept]], reduction="sum")
    return {"loss": (loss / (count * t["x"].shape[1])).reshape(1)}


def _embedding(t: Tensors, case: RangeCase) -> Tensors:
    return {"y": functional.embedding(torch.tensor(case.numbers["tokens"]), t["weight"])}


def _positions(t: Tensors, case: RangeCase) -> Tensors:
    batch, time, _ = case.trial.example["y"]
    return {"y": t["table"][:time].expand(batch, -1, -1)}


FORWARDS: dict[str, Callable[[Tensors, RangeCase], Tensors]] = {
    "embedding": _embedding,
    "positions": _positions,
    "linear": lambda t, case: {"y": functional.linear(t["x"], t["weight"].T, t.get("bias"))},
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "adapt": lambda t, case: {"y": case.trial.example["scale"] * t["low"] @ t["weight"]},
    "swiglu": lambda t, case: {"y": functional.silu(t["gate"]) * t["up"]},
    "attention": _attention,
    "cached_attention": _cached_attention,
    "gelu": lambda t, case: {"y": functional.gelu(t["x"], approximate="tanh")},
    "relu": lambda t, case: {"y": functional.relu(t["x"])},
    "tanh": lambda t, case: {"y": torch.tanh(t["x"])},
    "residual": lambda t, case: {"y": t["x"] + t["branch"]},
    "last_position": lambda t, case: {"y": t["x"][:, -1:]},
    "classifier": _classifier,
    "squared_error": _squared_error,
    "unembed": lambda t, case: {"y": t["x"] @ t["weight"].T},
    "proximity": lambda t, case: {"y": -(torch.cdist(t["x"], t["weight"]) ** 2)},
    "global_norm": lambda t, case: {
        "norm": t["gradients"].norm().reshape(1),
        "norms": torch.stack(
            [part.norm() for part in torch.tensor_split(t["gradients"], case.trial.example["sections"][1:])]
        ),
    },
}


def torch_results(case: RangeCase) -> dict[str, Array] | None:
    """What torch computes of the case's results; None where it has no such op, or adds to something."""
    assert isinstance(case.trial, Trial)
    name, numbers = case.trial.name, case.numbers
    written = {argument.name: argument.mode for argument in case.trial.steps[-1].call.writes}
    if name not in FORWARDS or "add" in written.values():
        return None
    backward = case.trial.direction == "backward"
    tensors = {
        key: torch.tensor(array.astype(np.float32), requires_grad=backward and f"d{key}" in written)
        for key, array in numbers.items()
        if case.trial.spec.is_number(key)
    }
    outputs = FORWARDS[name](tensors, case)
    found = {key: output.detach() for key, output in outputs.items() if key in written}
    if backward:
        root = outputs["loss" if "loss" in outputs else "y"]
        if root.requires_grad:
            root.backward(tensors.get("dy", torch.ones(1)).reshape(root.shape))
        for key, tensor in tensors.items():
            if f"d{key}" in written:
                found[f"d{key}"] = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return {key: tensor.numpy().astype(np.float64) for key, tensor in found.items()}


def beside_torch(
    name: str, direction: str, seed: int, least: int = VALUES
) -> dict[str, tuple[RangeError, float, float]]:
    """By result: ours at its worst, the worst of torch on the same cases (where it is finite at all), and the most that
    was summed into one number of any of them, as a root."""
    worst: dict[str, tuple[RangeError, float, float]] = {}
    values = 0
    for case in cases(name, direction, cpu, seed, least):
        values += case.trial.size
        peer = torch_results(case)
        for error in judge(case, case.trial.found(case.numbers)):
            held, theirs, length = worst.get(error.result, (error, 0.0 if peer else float("nan"), 0.0))
            if peer is not None:
                alone = replace(case, true={error.result: case.true[error.result]})
                off = judge(alone, peer)[0].error
                theirs = max(theirs, off) if np.isfinite(off) else theirs
            held = error if error.share > held.share else held
            worst[error.result] = (held, theirs, max(length, case.trial.lengths[error.result]))
    return {
        result: (replace(error, values=values), theirs, length) for result, (error, theirs, length) in worst.items()
    }
