"""What is given to `op`, checked: what is said of a kernel, and a pair of functions in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from tapeless.check.own.bounds import FORMATS
from tapeless.check.own.harness import POSITIONAL, Pair, as_array, is_tensor, parameters_of
from tapeless.errors import TapelessError, unknown
from tapeless.ops.contract import NONE, Array

PAIRS = 48  # cases in which two or three things are changed


@dataclass(frozen=True)
class Claims:
    """What its author says of a kernel."""

    writes: bool | None = None  # into its outputs, or it returns them; None: seen from its arguments
    adds: frozenset[str] = NONE  # gradients that it always adds to
    shapes: Any = None  # the axes of each input by name; None: by their sizes
    sizes: Mapping[str, range] = field(default_factory=dict)  # which an axis may have
    largest: int = 1031  # the longest axis that is tried
    within: float = float("inf")  # no numbers beyond this are tried, nor below 1 / this
    strides: bool | None = None  # it takes inputs that are not contiguous; None: if autograd goes through it
    repeatable: bool = True  # the same bits every time
    dtypes: tuple[str, ...] = ()  # that it takes; none: those that it does not refuse
    options: Mapping[str, Any] = field(default_factory=dict)  # by name: a value, or a list of values to try
    limits: frozenset[str] = NONE  # what its author does not promise, see LIMITS
    case: str | None = None  # only this one
    seconds: float = 60.0
    pairs: int = PAIRS  # cases in which several things are changed
    first: bool = False  # stop at the first mistake


# What an author may leave out: the word, and the cases that then are none.
LIMITS = {
    "large": "|x| above 1e4",
    "tiny": "|x| below 1e-20",
    "nan": "NaN is not handed on",
    "one": "an axis of size 1",
    "empty": "an axis of size 0",
    "in place": "it writes over its inputs or dy",
    "not deterministic": "not the same bits every time",
    "double backward": "no second derivative",
    "rank": "another number of axes",
    "strides": "inputs that are not contiguous",
    "autocast": "under autocast",
}


def claims_of(given: dict[str, Any]) -> Claims:
    fields = Claims.__dataclass_fields__
    if set(given) - set(fields):
        name = min(set(given) - set(fields))
        raise TapelessError(f"op takes no {name}: of a kernel it takes {', '.join(fields)}.")
    adds, within, largest = given.get("adds", ()), given.get("within", inf), given.get("largest", 1)
    if isinstance(adds, str) or not all(isinstance(name, str) for name in adds):
        raise TapelessError(f"adds must be names of gradients, such as ['dweight'], not {adds!r}.")
    if isinstance(within, bool) or not isinstance(within, int | float) or not within > 1:
        raise TapelessError(f"within must be a number above 1, such as 1e6, not {within!r}.")
    if isinstance(largest, bool) or not isinstance(largest, int) or largest < 1:
        raise TapelessError(f"largest must be a whole number of at least 1, not {largest!r}.")
    if not isinstance(given.get("writes"), bool | None):
        raise TapelessError(f"writes must be True or False, not {given['writes']!r}.")
    for name in ("strides", "repeatable"):
        if not isinstance(given.get(name, True), bool | None):
            raise TapelessError(f"{name} must be True or False, not {given[name]!r}.")
    dtypes = given.get("dtypes", ())
    dtypes = (dtypes,) if isinstance(dtypes, str) else tuple(str(each).removeprefix("torch.") for each in dtypes)
    for each in dtypes:
        if each not in FORMATS:
            raise unknown("dtype", each, FORMATS)
    limits = given.get("limits", ())
    for each in (limits,) if isinstance(limits, str) else limits:
        if each not in LIMITS:
            raise unknown("limit", each, LIMITS)
    limits = frozenset((limits,) if isinstance(limits, str) else limits)
    return Claims(**given | {"adds": frozenset(adds), "dtypes": dtypes, "limits": limits})


def pair_of(forward: Any, backward: Any, given: tuple[Any, ...], saved: bool) -> Pair:
    for what, function in (("forward", forward), ("backward", backward)):
        if not callable(function):
            raise TapelessError(f"{what} must be a function, not {function!r}.")
    devices = tuple(value.device if is_tensor(value) else None for value in given)
    arrays = [as_array(value) if is_tensor(value) else value for value in given]
    plain = [each.name for each in parameters_of(forward) if each.kind in POSITIONAL]
    names = tuple(plain[index] if index < len(plain) else f"input{index}" for index in range(len(given)))
    for name, value, device in zip(names, arrays, devices, strict=True):
        if isinstance(value, np.ndarray):
            _check_input(name, value, device is not None)
    return Pair(forward, backward, tuple(arrays), devices, names, saved)


def _check_input(name: str, value: Array, tensor: bool) -> None:
    if value.dtype.kind in "fc" and value.dtype != np.float64:
        way = ".double()" if tensor else ".astype('float64')"
        raise TapelessError(f"{name} is {value.dtype}, and a proof needs float64: convert it, {way}.")
    if value.dtype == np.float64 and not np.isfinite(value).all():
        where = tuple(int(axis) for axis in np.argwhere(~np.isfinite(value))[0])
        raise TapelessError(f"{name} holds {value[where]} at {where}: choose finite inputs.")


def checked_wrt(pair: Pair, wrt: Any) -> tuple[int, ...]:
    floats = [
        index
        for index, value in enumerate(pair.inputs)
        if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.size
    ]
    if wrt is None:
        if not floats:
            raise TapelessError("no input is a float64 array with anything in it, so there is no gradient to check.")
        return tuple(floats)
    if not isinstance(wrt, Sequence) or isinstance(wrt, str):
        raise TapelessError(f"wrt must be numbers of inputs, such as [0, 2], not {wrt!r}.")
    chosen = tuple(wrt)
    for index in chosen:
        if index not in floats:
            raise TapelessError(f"wrt={list(chosen)}: input {index!r} is no float64 array; choose among {floats}.")
    if not chosen or len(set(chosen)) != len(chosen):
        raise TapelessError(f"wrt={list(chosen)} must name at least one input, and each once.")
    return chosen
