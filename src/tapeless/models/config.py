"""What a model is: its architecture, its layout in memory, and a preset of both with what it starts from and learns by.
All frozen, and checked as a whole before anything is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.ops.contract import Scalar

LARGEST_SIZE = (1 << 63) - 1  # what a run's configuration can hold, too
TRAINED_DECAY = 0.1  # the weight decay of a training on text or operations, where none is named
CHOICES = {
    "placement": ("pre", "post"),
    "activation": ("gelu", "relu", "tanh", "swiglu"),
    "norm_kind": ("layernorm", "rmsnorm"),
    "positions": ("learned", "sinusoidal", "rotary"),
    "rope_scaling": ("none", "linear", "llama3"),
    "readout": ("all", "last"),
    "loss": ("cross_entropy", "squared_error"),
    "initialisation": ("gpt2", "xavier"),
    "optimizer": ("sgd", "momentum", "adam", "adamw", "muon"),
    "frozen_precision": ("float32", "bfloat16"),
}
MOST_LAYERS = 256  # every call of every layer is listed, proven and placed: some seconds at this size


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What it computes. Two models of the same architecture can take each other's weights."""

    layers: int
    channels: int
    heads: int
    vocab: int  # words a token model knows, classes an encoder tells apart
    context: int  # the most positions it can read
    hidden: int | None = None  # width of the feed-forward; by default four times the channels
    kv_heads: int | None = None  # heads of keys and values, which heads of queries share; by default one each
    head_width: int | None = None  # channels of a head; by default the channels are divided among the heads
    placement: str = "pre"  # of the norms: before each branch, or after it
    activation: str = "gelu"
    norm_kind: str = "layernorm"
    query_key_norm: bool = False  # of each head of queries and keys, before they meet
    positions: str = "learned"
    rope_base: float = 10000.0  # of rotary positions: the slowest pair of channels turns nearly so many times as slowly
    rope_scaling: str = "none"
    rope_factor: float = 1.0  # by how much rates are slowed down, for a longer context
    rope_low: float = 1.0  # of llama3: what turns less often than this within the old context is slowed down,
    rope_high: float = 4.0  # what turns more often than this is not
    rope_old_context: int = 8192
    causal: bool = True
    window: int = 0  # positions that one sees, itself the last of them; 0 means all before it
    tied: bool = True  # the head is the token embedding
    attention_bias: bool = True
    projection_bias: bool = True  # where attention has biases: also in the product that it ends with
    mlp_bias: bool = True
    features: int = 0  # real-valued features per position instead of tokens; 0 means tokens
    readout: str = "all"  # predict at every position, or once from the last
    loss: str = "cross_entropy"
    norm_eps: float = 1e-5

    @property
    def width(self) -> int:
        """The resolved width of the feed-forward."""
        return 4 * self.channels if self.hidden is None else self.hidden

    @property
    def gated(self) -> bool:
        """Whether the activation has two halves."""
        return self.activation == "swiglu"

    @property
    def head_channels(self) -> int:
        """The resolved width of a head."""
        return self.channels // self.heads if self.head_width is None else self.head_width

    @property
    def key_heads(self) -> int:
        """How many heads keys and values have; several of the queries' share one where they are fewer."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def packable(self) -> bool:
        """Whether several documents can share a row: each begins at place 0, and nobody sees another's."""
        return self.positions == "rotary" and self.causal and self.readout == "all"

    def described(self) -> str:
        """Its sizes in a few words."""
        several = "s" * (self.layers > 1)
        reads = f"{self.features} features, {self.vocab:,} classes" if self.features else f"vocabulary {self.vocab:,}"
        return f"{self.layers} layer{several} × {self.channels} channels, {self.heads} heads, {reads}"

    def validate(self) -> None:
        """Refuse what cannot be, in a sentence."""
        _check_fields(self)
        if self.layers > MOST_LAYERS:
            raise TapelessError(
                f"layers={self.layers} makes a list of calls that takes too long to prove: use at most {MOST_LAYERS}."
            )
        self._check_heads()
        self._check_rope()
        if self.features and (self.tied or self.loss == "squared_error"):
            wrong = "tied=True" if self.tied else "loss='squared_error'"
            raise TapelessError(f"{wrong} needs a token embedding, and features={self.features} leaves none.")
        if self.loss == "squared_error" and not self.tied:
            raise TapelessError("loss='squared_error' predicts embeddings and has no head: tied must be true.")

    def _check_heads(self) -> None:
        if self.head_width is None and self.channels % self.heads:
            raise TapelessError(
                f"channels={self.channels} cannot be split over heads={self.heads}: "
                f"choose a number of heads that divides the channels."
            )
        if self.heads % self.key_heads:
            raise TapelessError(
                f"heads={self.heads} cannot share kv_heads={self.kv_heads}: choose a number that divides the heads."
            )
        if self.window and not self.causal:
            raise TapelessError(f"window={self.window} is of the past, and causal=False sees the future: take one.")

    def _check_rope(self) -> None:
        if not self.rope_base > 1:
            raise TapelessError(f"rope_base must be above 1, not {self.rope_base!r}: rates fall from 1 to its inverse.")
        if not self.rope_low < self.rope_high:
            raise TapelessError(f"rope_low={self.rope_low!r} must be below rope_high={self.rope_high!r}.")
        if self.positions == "rotary" and self.head_channels % 2:
            raise TapelessError(
                f"rotary positions turn pairs of channels, and a head has {self.head_channels}: make it an even number."
            )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How much memory it takes and how much time: not what it computes."""

    recompute: bool = False  # keep only each block's ends and compute its inside again in the backward
    chunk: int | None = None  # rows of logits that exist at a time; None: as many as suit the backend
    keep_norms: bool = False  # what norms give stays until the backward, which else computes it again
    lean: bool = False  # gradients of weights lie where activations were: batches cannot be added up

    def validate(self) -> None:
        """Refuse what cannot be, in a sentence."""
        _check_fields(self)


@dataclass(frozen=True)
class Preset:
    """A model by name. Every field, also those of its architecture and layout, can be overridden by its own name, in
    Python and on the command line."""

    name: str
    architecture: Architecture
    layout: Layout = Layout()
    initialisation: str = "gpt2"
    optimizer: str = "adamw"
    dropout: float = 0.0  # while it learns: the share of every branch, and of the embedding, that is left out
    frozen: tuple[str, ...] = ()  # weights that are not trained, by patterns over their names: "blocks.[0-2].*"
    frozen_precision: str | None = None  # the type of the matrices among them; None: the one that the precision says
    train: tuple[str, ...] = ()  # those that alone are: "norms", "head", "blocks.11", or patterns; none named means all
    lora: int | None = None  # the rank of LoRA adapters, which are trained in the place of what they adapt
    lora_alpha: float | None = None  # they are scaled by alpha / rank; by default by 2
    lora_targets: tuple[str, ...] = ()  # projections that have one: "q", "attn.proj", "blocks.3"; none named means all

    @classmethod
    def of(cls, name: str, **values: Any) -> Preset:
        """From all its fields, side by side."""
        check_fields(values)
        missing = [each for each in REQUIRED if each not in values]
        if missing:
            raise TapelessError(f"{missing[0]} is missing: without a preset, a model needs {', '.join(REQUIRED)}.")
        first = cls(name, Architecture(**{each: values[each] for each in REQUIRED}))
        return first.override(**values)

    def override(self, **changes: Any) -> Preset:
        """The same with these fields changed, checked as a whole."""
        check_fields(changes)
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in changes.items()}
        plain = {name: _listed(value) if name in LISTS else value for name, value in plain.items()}
        changed = replace(
            self,
            architecture=replace(self.architecture, **_those_of(Architecture, plain)),
            layout=replace(self.layout, **_those_of(Layout, plain)),
            **_those_of(Preset, plain),
        )
        changed.validate()
        return changed

    def values(self) -> dict[str, Any]:
        """All its fields but the name, side by side."""
        return {name: getattr(_part_with(self, name), name) for name in OVERRIDABLE}

    def validate(self) -> None:
        """Refuse what cannot be, in a sentence."""
        self.architecture.validate()
        self.layout.validate()
        _check_fields(self)
        for name in ("lora_alpha", "lora_targets"):
            if self.lora is None and getattr(self, name):
                raise TapelessError(
                    f"{name}={getattr(self, name)!r} is of adapters, and lora says no rank: give one, such as lora=16."
                )


BELOW_1 = {
    "dropout": "the share that is left out, at least 0 and below 1, such as 0.1",
    "norm_eps": "a number between 0 and 1",
}
ZERO = {"features": "tokens", "window": "all before it"}  # what 0 means
# Fields that name several things, with an example.
LISTS = {
    "frozen": "patterns over the names of weights, such as ('blocks.0.*',)",
    "train": "names of weights or parts of the model, such as ('norms', 'blocks.0', 'head')",
    "lora_targets": "names of projections, such as ('q', 'v')",
}


def _listed(value: Any) -> Any:
    """A tuple; where names are separated by commas, all of them."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        return value
    return tuple(name.strip() for each in value for name in each.split(","))


def _names(part: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(part) if each.name not in ("name", "architecture", "layout"))


REQUIRED = ("layers", "channels", "heads", "vocab", "context")
OVERRIDABLE = (*_names(Architecture), *_names(Layout), *_names(Preset))


def _those_of(part: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in _names(part)}


def _part_with(preset: Preset, name: str) -> Any:
    return next(part for part in (preset.architecture, preset.layout, preset) if name in _names(part))


def check_fields(names: Mapping[str, Any]) -> None:
    for name in names:
        if name not in OVERRIDABLE:
            raise unknown("field", name, OVERRIDABLE)


def _check_fields(part: Any) -> None:
    """Each field by itself: one of its choices, or what its type and its name ask for."""
    for each in fields(part):
        name, kind, value = each.name, str(each.type), getattr(part, each.name)
        if value is None and each.default is None:
            continue
        if name in CHOICES:
            if value not in CHOICES[name]:
                raise unknown(name, value, CHOICES[name])
        elif name in LISTS:
            if not isinstance(value, tuple) or not all(isinstance(one, str) and one for one in value):
                raise TapelessError(f"{name} must be a tuple or list of {LISTS[name]}, not {value!r}.")
        elif kind == "bool":
            if not isinstance(value, bool):
                raise TapelessError(f"{name} must be true or false, not {value!r}.")
        elif kind.startswith("int"):
            _check_whole(name, value)
        elif kind.startswith("float"):
            _check_number(name, value)


def _check_whole(name: str, value: Any) -> None:
    if name in ZERO and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise TapelessError(f"{name} must be 0 ({ZERO[name]}) or a whole number above, not {value!r}.")
    if name not in ZERO or value:
        check_size(name, value)


def _check_number(name: str, value: Any) -> None:
    number, top = not isinstance(value, bool) and isinstance(value, int | float), 1 if name in BELOW_1 else float("inf")
    if not number or not (0 < value < top or (name == "dropout" and value == 0)):
        raise TapelessError(f"{name} must be {BELOW_1.get(name, 'a finite number above 0')}, not {value!r}.")


def checked_class_weights(config: Architecture, weights: Any) -> tuple[float, ...] | None:
    """How much each class counts in the loss; None where all count the same."""
    if weights is None:
        return None
    if config.loss != "cross_entropy":
        raise TapelessError("class_weights belong to loss='cross_entropy': a squared error knows no classes.")
    if not isinstance(weights, tuple | list) or len(weights) != config.vocab:
        raise TapelessError(f"class_weights must be {config.vocab} numbers, one a class, not {weights!r}.")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise TapelessError(f"class_weights must be finite numbers above 0, not {weight!r}.")
    return tuple(weights)


def check_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise TapelessError(f"{name} must be a whole number of at least 1, not {value!r}.")
    if int(value) > LARGEST_SIZE:
        raise TapelessError(f"{name} must be at most {LARGEST_SIZE:,}: nothing larger fits a machine.")


@dataclass(frozen=True)
class Optimizer:
    """How weights follow gradients. The defaults are the usual ones (and PyTorch's)."""

    name: str
    momentum: float | None = None  # by default 0.95 for muon, else 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01  # of adamw and muon, and there on matrices only

    @property
    def inertia(self) -> float:
        """The resolved momentum."""
        usual = 0.95 if self.name == "muon" else 0.9
        return usual if self.momentum is None else self.momentum

    def number(self, name: str) -> Scalar:
        """One of its numbers, which says of itself what it is; Adam is AdamW without decay."""
        if name == "decay" and self.name == "adam":
            return Scalar(0.0, name)
        return Scalar(self.inertia if name == "momentum" else getattr(self, name), name)

    def __post_init__(self) -> None:
        if self.name not in CHOICES["optimizer"]:
            raise unknown("optimizer", self.name, CHOICES["optimizer"])
        below_1 = {"momentum": self.inertia, "beta1": self.beta1, "beta2": self.beta2}
        for name, value in (below_1 | {"eps": self.eps, "decay": self.decay}).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TapelessError(f"{name} must be a number, not {value!r}.")
            if name in below_1 and not 0 <= value < 1:
                raise TapelessError(f"{name} must be at least 0 and below 1, not {value!r}.")
            if not 0 <= value < float("inf"):
                raise TapelessError(f"{name} must be 0 or a finite number above, not {value!r}.")
