"""What a family of published models is: how its config.json is read and written, and what its tensors are to ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tapeless.errors import TapelessError
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array
from tapeless.weights.tensors import show

Fields = Mapping[str, Any]


class Piece(NamedTuple):
    """A tensor of theirs as columns of a weight of ours, as it is or transposed."""

    theirs: str
    start: int
    stop: int
    transposed: bool = False

    def of(self, weight: Array) -> Array:
        """Their tensor: a view of our weight, which may be written to."""
        columns = weight[..., self.start : self.stop]
        return columns.T if self.transposed else columns


@dataclass(frozen=True)
class Family:
    title: str  # what such a model is called
    classes: Mapping[str, str]  # of transformers, by the model_type of a config.json
    prefix: str  # all tensors but the head have it, unless the body alone was saved
    tokens: str  # the embedding, without the prefix: a tied head may be stored once more
    ignored: str  # constants that older versions saved, by a pattern
    layers: str  # what config.json calls the number of blocks
    least: int  # tensors that every block has
    read: Callable[[Path, Fields], Architecture]
    fits: Callable[[Architecture], str | None]  # why a model of ours is none of them, if it is not
    described: Callable[[Architecture], dict[str, Any]]  # config.json, but for the tokens that begin and end a text
    pieces: Callable[[Architecture, str], list[Piece]]  # of a weight of ours, by its name; from left to right

    def their_names(self, config: Architecture, ours: str) -> list[str]:
        return [piece.theirs for piece in self.pieces(config, ours)]


# Fields of a config.json, each believed only when it is seen to be what it must be.


def size(where: Path, fields: Fields, name: str) -> int:
    if fields.get(name) is None:
        missing = "n_positions" if name == "n_ctx" else name
        raise TapelessError(f"{where} has no {missing}: add it, so that the model's size is known.")
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise TapelessError(f"{where} has {name}={show(value)}: it must be a whole number from 1 to {2**31 - 1}.")
    return value


def flag(where: Path, fields: Fields, name: str, usual: bool) -> bool:
    value = fields.get(name, usual)
    if not isinstance(value, bool):
        raise TapelessError(f"{where} has {name}={show(value)}: it must be true or false.")
    return value


def number(where: Path, fields: Fields, name: str, usual: float | None, below: float) -> float:
    """Above 0 and below a limit."""
    value = fields.get(name, usual)
    if value is None:
        raise TapelessError(f"{where} has no {name}: add it.")
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < below:
        limit = "above 0" if below > 1e300 else f"between 0 and {below:g}"
        raise TapelessError(f"{where} has {name}={show(value)}: it must be a number {limit}.")
    return float(value)


def check_fixed(where: Path, fields: Fields, readable: Mapping[str, Any]) -> None:
    """What changes the computation in a way that we do not have: the one value that can be read."""
    for name, value in readable.items():
        found = fields.get(name, value)
        if found != value or type(found) is not type(value):
            raise TapelessError(
                f"{where} has {name}={show(found)}, which tapeless does not have: only {value} can be read."
            )
