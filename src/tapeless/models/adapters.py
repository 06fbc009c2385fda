"""Adapters of low rank (LoRA): which projections have one, and what a model with them is without them.

A projection's weight stays as it is, and beside it stand A (inputs × rank) and B (rank × outputs), which are trained:
y = x @ W + scale · (x @ A) @ B. A packed weight (q, k and v in one product) has the As of its projections side by side,
and their Bs. A model with learned or sinusoidal positions has its q, k and v adapted as one projection, as GPT-2 is
published with one matrix for them; a model with rotary positions each by itself, as Llama has three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise

from tapeless.errors import TapelessError
from tapeless.models.config import Architecture, Preset
from tapeless.ops.contract import Array

LORA_A, LORA_B = "lora_a", "lora_b"  # how their weights' names end, where the adapted one's ends with "weight"


@dataclass(frozen=True)
class Projection:
    """Columns of a packed weight that are a matrix of their own."""

    name: str  # "attn.q"
    start: int
    stop: int


@dataclass(frozen=True)
class PackedProjections:
    """The projections that lie side by side in one weight."""

    inputs: int
    projections: tuple[Projection, ...]


def packed_weights(c: Architecture) -> dict[str, PackedProjections]:
    """Those of a block, by what the weight is called."""
    queries, keys = c.heads * c.head_channels, c.key_heads * c.head_channels
    rotary = c.positions == "rotary"
    qkv = {"attn.q": queries, "attn.k": keys, "attn.v": keys} if rotary else {"attn.qkv": queries + 2 * keys}
    up = {"mlp.gate": c.width, "mlp.up": c.width} if c.gated else {"mlp.up": c.width}
    return {
        "attn.qkv": _side_by_side(c.channels, qkv),
        "attn.proj": _side_by_side(queries, {"attn.proj": c.channels}),
        "mlp.gate_up" if c.gated else "mlp.up": _side_by_side(c.channels, up),
        "mlp.down": _side_by_side(c.width, {"mlp.down": c.channels}),
    }


def _side_by_side(inputs: int, widths: Mapping[str, int]) -> PackedProjections:
    edges = pairwise(accumulate(widths.values(), initial=0))
    return PackedProjections(inputs, tuple(Projection(name, *edge) for name, edge in zip(widths, edges, strict=True)))


@dataclass(frozen=True)
class Adapters:
    """Of a model: the rank, the scale and the projections that have one, each by its whole name."""

    rank: int
    scale: float
    targets: frozenset[str]
    weights: Mapping[str, PackedProjections]

    def of(self, weight: str) -> tuple[Projection, ...]:
        """The adapted projections of a weight: "blocks.0.attn.qkv"."""
        _, block, name = weight.split(".", 2)
        packed = self.weights.get(name)  # a norm has none
        return tuple(p for p in packed.projections if f"blocks.{block}.{p.name}" in self.targets) if packed else ()


def adapters_of(preset: Preset) -> Adapters | None:
    """What the preset asks for, once it is seen to be possible."""
    if preset.lora is None:
        return None
    c, rank = preset.architecture, preset.lora
    weights = packed_weights(c)
    projections = [(packed.inputs, each) for packed in weights.values() for each in packed.projections]
    names = [f"blocks.{n}.{each.name}" for n in range(c.layers) for _, each in projections]
    targets = frozenset(names)
    if preset.lora_targets:
        for wanted in preset.lora_targets:
            if not any(_means(wanted, name) for name in names):
                known = ", ".join(each.name.rpartition(".")[2] for _, each in projections)
                raise TapelessError(f"unknown target of LoRA {wanted!r}: this model has {known}.")
        targets = frozenset(name for name in names if any(_means(wanted, name) for wanted in preset.lora_targets))
    for inputs, each in projections:
        if any(name.endswith(f".{each.name}") for name in targets) and rank > min(inputs, each.stop - each.start):
            raise TapelessError(
                f"lora={rank} is more than {each.name} has: its matrix is {inputs} × {each.stop - each.start}, so "
                f"its rank is {min(inputs, each.stop - each.start)} at most; choose a lower rank."
            )
    alpha = 2 * rank if preset.lora_alpha is None else preset.lora_alpha
    return Adapters(rank, alpha / rank, targets, weights)


def _means(wanted: str, name: str) -> bool:
    """ "q", "attn.q", "blocks.0", "blocks.0.attn.q", or a pattern over whole names."""
    return fnmatchcase(name, wanted) or name.endswith(f".{wanted}") or name.startswith(f"{wanted}.")


def merged(preset: Preset, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The weights of the same model without adapters: W + scale · A @ B, summed in float64 and rounded once."""
    adapters = adapters_of(preset)
    found = {name: array for name, array in weights.items() if not name.endswith((f".{LORA_A}", f".{LORA_B}"))}
    if adapters is None:
        return found
    for name in found:
        path = name.removesuffix(".weight")
        adapted = adapters.of(path) if path.startswith("blocks.") else ()
        if not adapted:
            continue
        whole = found[name].astype("float64")
        a, b = (weights[f"{path}.{end}"].astype("float64") for end in (LORA_A, LORA_B))
        at = 0
        for n, each in enumerate(adapted):
            width = each.stop - each.start
            low = a[:, n * adapters.rank : (n + 1) * adapters.rank]
            whole[:, each.start : each.stop] += adapters.scale * low @ b[:, at : at + width]
            at += width
        found[name] = whole.astype(found[name].dtype)
    return found
