"""What a model is made of: a frozen record, checked as a whole before anything is built from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown

LARGEST_SIZE = (1 << 63) - 1  # what a run's configuration can hold, too
CHOICES = {
    "norm": ("pre", "post"),
    "activation": ("gelu", "relu", "tanh"),
    "positions": ("learned", "sinusoidal"),
    "readout": ("all", "last"),
    "loss": ("cross_entropy", "squared_error"),
    "initialisation": ("gpt2", "xavier"),
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
}


MOST_LAYERS = 256  # every call of every layer is listed, proven and placed: some seconds at this size


@dataclass(frozen=True)
class Config:
    """A preset's fields. Every one can be overridden by name, in Python and on the command line."""

    name: str
    layers: int
    channels: int
    heads: int
    vocab: int  # words a token model knows, classes an encoder tells apart
    context: int  # the most positions it can read
    hidden: int | None = None  # width of the feed-forward; by default four times the channels
    norm: str = "pre"
    activation: str = "gelu"
    positions: str = "learned"
    causal: bool = True
    tied: bool = True  # the head is the token embedding
    recompute: bool = False  # keep only each block's ends and compute its inside again in the backward
    attention_bias: bool = True
    features: int = 0  # real-valued features per position instead of tokens; 0 means tokens
    readout: str = "all"  # predict at every position, or once from the last
    loss: str = "cross_entropy"
    initialisation: str = "gpt2"
    optimizer: str = "adamw"
    norm_eps: float = 1e-5
    chunk: int = 256  # rows of logits that exist at a time
    class_weights: tuple[float, ...] | None = None  # how much each class counts in the loss; all the same by default
    frozen: tuple[str, ...] = ()  # weights that are not trained, by patterns over their names: "blocks.[0-2].*"

    @property
    def width(self) -> int:
        """The resolved width of the feed-forward."""
        return 4 * self.channels if self.hidden is None else self.hidden

    def override(self, **changes: Any) -> Config:
        for name in changes:
            if name not in OVERRIDABLE:
                raise unknown("field", name, OVERRIDABLE)
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in changes.items()}
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        changed = replace(self, **plain)
        changed.validate()
        return changed

    def validate(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)
        for name in ("layers", "channels", "heads", "vocab", "context", "chunk"):
            check_size(name, getattr(self, name))
        if self.hidden is not None:
            check_size("hidden", self.hidden)
        if self.layers > MOST_LAYERS:
            raise TapelessError(
                f"layers={self.layers} makes a list of calls that takes too long to prove: use at most {MOST_LAYERS}."
            )
        for name in ("causal", "tied", "recompute", "attention_bias"):
            if not isinstance(getattr(self, name), bool):
                raise TapelessError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        if not isinstance(self.features, int) or isinstance(self.features, bool) or self.features < 0:
            raise TapelessError(f"features must be 0 (tokens) or a whole number above, not {self.features!r}.")
        if self.features:
            check_size("features", self.features)
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < 1:
            raise TapelessError(f"norm_eps must be a number between 0 and 1, not {self.norm_eps!r}.")
        if self.channels % self.heads:
            raise TapelessError(
                f"channels={self.channels} cannot be split over heads={self.heads}: "
                f"choose a number of heads that divides the channels."
            )
        if self.features and (self.tied or self.loss == "squared_error"):
            wrong = "tied=True" if self.tied else "loss='squared_error'"
            raise TapelessError(f"{wrong} needs a token embedding, and features={self.features} leaves none.")
        self._check_class_weights()
        if not isinstance(self.frozen, tuple) or not all(isinstance(pattern, str) for pattern in self.frozen):
            raise TapelessError(
                f"frozen must be patterns over the names of weights, such as 'blocks.0.*', not {self.frozen!r}."
            )
        if self.loss == "squared_error" and not self.tied:
            raise TapelessError("loss='squared_error' predicts embeddings and has no head: tied must be true.")

    def _check_class_weights(self) -> None:
        if self.class_weights is None:
            return
        if self.loss != "cross_entropy":
            raise TapelessError("class_weights belong to loss='cross_entropy': a squared error knows no classes.")
        if not isinstance(self.class_weights, tuple) or len(self.class_weights) != self.vocab:
            raise TapelessError(f"class_weights must be {self.vocab} numbers, one a class, not {self.class_weights!r}.")
        for weight in self.class_weights:
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise TapelessError(f"class_weights must be finite numbers above 0, not {weight!r}.")


OVERRIDABLE = tuple(field.name for field in fields(Config) if field.name != "name")


def check_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise TapelessError(f"{name} must be a whole number of at least 1, not {value!r}.")
    if int(value) > LARGEST_SIZE:
        raise TapelessError(f"{name} must be at most {LARGEST_SIZE:,}: nothing larger fits a machine.")


@dataclass(frozen=True)
class Optimizer:
    """How weights follow gradients. The defaults are the usual ones (and PyTorch's)."""

    name: str
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01  # adamw only, and there on matrices only

    def __post_init__(self) -> None:
        if self.name not in CHOICES["optimizer"]:
            raise unknown("optimizer", self.name, CHOICES["optimizer"])
        for name in ("momentum", "beta1", "beta2", "eps", "decay"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise TapelessError(f"{name} must be a number, not {getattr(self, name)!r}.")
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise TapelessError(f"{name} must be at least 0 and below 1, not {getattr(self, name)!r}.")
        for name in ("eps", "decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise TapelessError(f"{name} must be 0 or a finite number above, not {getattr(self, name)!r}.")
