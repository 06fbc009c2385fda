"""Signals, labels and scales as users hand them in, checked piece by piece: a memory map is never read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.models.config import Architecture
from tapeless.ops.contract import Array

PIECE = 1 << 18  # positions that are looked at at a time


def pieces(values: Any) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(values), PIECE):
        yield start, np.asarray(values[start : start + PIECE])


def checked_signal(signal: Any, what: str = "the signal") -> Any:
    """Finite real or complex numbers, at least one."""
    signal = _sequence(what, signal)
    for start, piece in pieces(signal):
        if piece.dtype.kind not in "iufc":
            remedy = "; convert it with .astype(float)" if piece.dtype.kind == "b" else ""
            raise TapelessError(f"{what} must hold numbers, not {piece.dtype}{remedy}.")
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(piece.astype(np.complex128))
        if not finite.all():
            where = int(np.argmin(finite))
            raise TapelessError(
                f"{what} holds {piece[where]} at position {start + where}: every sample must be a finite number "
                f"in double precision, so replace or cut what is not."
            )
    return signal


def checked_labels(labels: Any, length: int, classes: int, what: str = "the labels") -> Any:
    """One class per position, or −1 where it is not known; true and false are 1 and 0."""
    labels = _sequence(what, labels)
    if len(labels) != length:
        raise TapelessError(
            f"{what} have a length of {len(labels):,} and the signal has {length:,} samples: give one label for each."
        )
    for start, piece in pieces(labels):
        if piece.dtype.kind not in "iub":
            remedy = "; convert them with .astype(int)" if piece.dtype.kind == "f" else ""
            raise TapelessError(f"{what} must be integers, not {piece.dtype}{remedy}.")
        whole = piece.astype(np.int8) if piece.dtype.kind == "b" else piece
        outside = (whole < -1) | (whole >= classes)
        if outside.any():
            where = int(np.argmax(outside))
            raise TapelessError(
                f"{what} hold {whole[where]} at position {start + where}; they must lie between −1 (not known) "
                f"and {classes - 1}."
            )
    return labels


def _sequence(what: str, values: Any) -> Any:
    """What has a length and slices stays as it is, because it may lie on disk; the rest becomes an array."""
    if isinstance(values, np.ma.MaskedArray):
        raise TapelessError(f"{what}: a masked array has positions without a value; fill or cut them first.")
    try:
        if isinstance(values, list | tuple) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
            values = np.asarray(values)
        shape = getattr(values, "shape", None) or np.shape(values[:1])
    except (TypeError, ValueError, KeyError, IndexError):
        shape = ()
    if len(shape) != 1:
        found = f"the shape {spelled(tuple(shape))}" if shape else f"a value of type {type(values).__name__}"
        raise TapelessError(f"{what} must be a sequence of numbers in one dimension, not {found}.")
    if not len(values):
        raise TapelessError(f"{what}: there are none, so there is nothing to compute; give at least one.")
    return values


def checked_scales(scales: Any) -> tuple[float, ...]:
    """Positive, finite numbers, at least one."""
    if isinstance(scales, str | bytes) or not isinstance(scales, Sequence | np.ndarray) or not np.ndim(scales):
        raise TapelessError(f"scales must be a sequence of numbers such as (3, 4, 5), not {scales!r}.")
    for scale in scales:
        number = isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)
        if not (number and 0 < scale < inf):
            raise TapelessError(f"a scale must be a finite number above 0, not {scale!r}.")
    if not len(scales):
        raise TapelessError("scales are empty: give at least one.")
    return tuple(float(scale) for scale in scales)


def check_fits(config: Architecture, given: int, described: str) -> None:
    """A model that can label a signal reads as many features as there are, and answers at every position."""
    if config.features != given:
        reads = f"{config.features} features" if config.features else "tokens"
        raise TapelessError(
            f"this model reads {reads} at each position, and {described} give {given} features: "
            f"use a model with features={given}, or other features."
        )
    if config.readout != "all":
        raise TapelessError("this model answers once per sequence and not at every position: set readout='all'.")
