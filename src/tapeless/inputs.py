"""What users hand to a model, checked: each refusal is one sentence, and comes before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from tapeless.errors import TapelessError
from tapeless.models.config import Architecture, check_size
from tapeless.ops.contract import Array, Shape
from tapeless.program.precision import largest, numpy_type

LARGEST_SEED = (1 << 63) - 1  # a run's configuration keeps it as TOML does its integers
MOST_STEPS = (1 << 63) - 1  # the list counts them in an int64


def check_shape(config: Architecture, batch: int, time: int) -> None:
    check_size("batch", batch)
    check_size("time", time)
    if time > config.context:
        raise TapelessError(
            f"time={time} is longer than the {config.context} positions of this model: "
            f"use at most {config.context}, or override context."
        )


def check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise TapelessError(f"seed must be a whole number of at least 0, not {seed!r}.")
    if int(seed) > LARGEST_SEED:
        raise TapelessError(f"seed must be at most {LARGEST_SEED:,}: what is larger fits no 64 bits.")


def checked_steps(made: Any) -> int:
    if isinstance(made, bool) or not isinstance(made, Integral) or not 0 <= int(made) <= MOST_STEPS:
        raise TapelessError(f"steps must be a whole number from 0 to {MOST_STEPS:,}, not {made!r}.")
    return int(made)


def check_update(lr: Any, clip: Any, dtype: str) -> None:
    if not (is_number(lr) and 0 <= lr < inf):
        raise TapelessError(f"lr must be 0 or a finite number above, not {lr!r}.")
    if lr > largest(dtype):
        raise TapelessError(f"lr must be at most {largest(dtype):.2g}, the largest number of {dtype}, not {lr!r}.")
    if clip is not None and not (is_number(clip) and clip > 0):
        raise TapelessError(f"clip must be above 0, or None for no clipping, not {clip!r}.")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_array(what: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:
        raise TapelessError(f"{what} must be a rectangular array, but its rows differ in length.") from None


class Packed(NamedTuple):
    """Tokens (B, T) of documents that share rows, and of each token the number of its document: `segments` (B, T), the
    same along a document and another where the next begins. Nobody sees another's, and each begins at place 0."""

    tokens: Any
    segments: Any


def unpacked(inputs: Any) -> tuple[Any, Any]:
    """What the model reads, and where documents share rows, which token is whose."""
    return (inputs.tokens, inputs.segments) if isinstance(inputs, Packed) else (inputs, None)


def joined(batches: Sequence[Any]) -> Any:
    """Inputs of several batches as those of one."""
    if isinstance(batches[0], Packed):
        return Packed(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))
    return np.concatenate(batches)


def rows_of(inputs: Any, chosen: slice) -> Any:
    """Some sequences of a batch."""
    return Packed(*(part[chosen] for part in inputs)) if isinstance(inputs, Packed) else inputs[chosen]


def documents(config: Architecture, segments: Any, shape: Shape) -> dict[str, Array]:
    """By the name of the buffer: where each token's document begins, and its place in it. Nothing where a model has no
    use for it; without segments, a row is a document."""
    if segments is not None and not config.packable:
        raise TapelessError(
            "documents cannot share rows of this model: that takes positions='rotary', causal=True and readout='all'."
        )
    if config.positions != "rotary":
        return {}
    batch, time = shape
    starts = np.zeros((batch, time), np.int64)
    if segments is not None:
        array = as_array("segments", segments)
        if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
            raise TapelessError(
                f"segments must be integers of shape {spelled(shape)}, not {array.dtype} of {spelled(array.shape)}."
            )
        begins = np.ones((batch, time), bool)
        begins[:, 1:] = array[:, 1:] != array[:, :-1]
        for row, first in zip(array, begins, strict=True):
            numbers, counts = np.unique(row[first], return_counts=True)
            if (counts > 1).any():
                raise TapelessError(
                    f"segment {numbers[counts > 1][0]} begins twice in a row: a document lies in one piece."
                )
        starts = np.maximum.accumulate(np.where(begins, np.arange(time), 0), axis=1)
    found = {"places": np.arange(time) - starts}
    return found | {"starts": starts} if config.packable else found


def inputs_name(config: Architecture) -> str:
    return "features" if config.features else "tokens"


def checked_inputs(config: Architecture, value: Any, shape: Shape | None, dtype: str) -> Array:
    """Token ids (B, T) or features (B, T, features); where `shape` is None, any batch and time will do."""
    name = inputs_name(config)
    array = as_array(name, value)
    if shape is None:
        if array.ndim != (3 if config.features else 2) or 0 in array.shape:
            wanted = ("batch", "time", config.features) if config.features else ("batch", "time")
            raise TapelessError(f"{name} must have shape {spelled(wanted)}, not {spelled(array.shape)}.")
        shape = array.shape[:2]
        check_shape(config, *shape)
    if config.features:
        return _checked_features(array, (*shape, config.features), dtype)
    return checked_ids("tokens", array, shape, 0, config.vocab)


def _checked_features(array: Array, shape: Shape, dtype: str) -> Array:
    if array.shape != shape:
        raise TapelessError(f"features must have shape {spelled(shape)}, not {spelled(array.shape)}.")
    if not np.issubdtype(array.dtype, np.number):
        raise TapelessError(f"features must be numbers, not {array.dtype}.")
    if np.iscomplexobj(array) and dtype != "complex128":
        raise TapelessError("features must be real numbers; give real and imaginary part as two features.")
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(numpy_type(dtype)))
    if not finite.all():
        where = _first(~finite)
        advice = f"too large for {dtype}: scale the signal" if np.isfinite(array[where]) else "clean the signal"
        raise TapelessError(f"features hold {array[where]} at {where}; {advice} before training.")
    return array


def checked_targets(config: Architecture, value: Any, batch: int, time: int, empty: bool = False) -> Array:
    """Ids (B, T), or (B,) where the model answers once per sequence; −1 is ignored, but unless `empty` is allowed
    (one of several batches that are added up) not everywhere."""
    array = as_array("targets", value)
    last, whole = config.readout == "last", (batch, time)
    if last and array.shape == whole:
        array = checked_ids("targets", array, whole, -1, config.vocab)
        early = array[:, :-1] != -1
        if early.any():
            where = _first(early)
            raise TapelessError(
                f"this model answers at the last position only, so targets before it must be −1, "
                f"not {array[where]} at {where}; or give targets of shape ({batch},)."
            )
        array = array[:, -1]
    array = checked_ids("targets", array, (batch,) if last else whole, -1, config.vocab)
    if not empty and (array < 0).all():
        raise TapelessError("all targets are −1, so there is nothing to learn from; give at least one.")
    return array


def checked_count(count: Any, here: float) -> float:
    """How many targets the mean is over: those of this batch, or more, where several batches are added up."""
    if count is None:
        return here
    # The sum over all batches is added up in another order than that of one of them.
    if not (is_number(count) and 0 < count < inf and count >= here * (1 - 1e-9)):
        raise TapelessError(f"count must be a number of at least the {here:g} targets here, not {count!r}.")
    return float(count)


def checked_ids(what: str, array: Array, shape: Shape, lowest: int, vocab: int) -> Array:
    if array.shape != shape:
        raise TapelessError(f"{what} must have shape {spelled(shape)}, not {spelled(array.shape)}.")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        remedy = "; convert them with .astype(int)" if array.dtype.kind in "bf" else ""
        raise TapelessError(f"{what} must be integers, not {array.dtype}{remedy}.")
    outside = (array < lowest) | (array >= vocab)
    if outside.any():
        where = _first(outside)
        raise TapelessError(f"{what} hold {array[where]} at {where}; they must lie between {lowest} and {vocab - 1}.")
    return array


def _first(where: Array) -> tuple[int, ...]:
    return tuple(int(index) for index in np.argwhere(where)[0])


def spelled(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
