"""How the CPU binds what `lowering.relu` fuses: a linear and the ReLUs around it are its GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tapeless.kernels.native import Native
from tapeless.program.call import Call


def linear_of(parts: Sequence[Call]) -> Call:
    return next(call for call in parts if call.op == "linear")


def bind_fused(parts: Sequence[Call], arrays: Sequence[dict[str, Any]], scratch: Sequence[Any]) -> list[Native]:
    """`arrays`: of each part, by argument."""
    linear = linear_of(parts)
    at = parts.index(linear)
    given, more = dict(arrays[at]), {}
    if at > 0:
        given["x"], more["relu"] = arrays[0]["x"].reshape(given["x"].shape, copy=False), True
    if at < len(parts) - 1:
        behind, shape = arrays[-1], given["dx"].shape
        given["dx"], more["mask"] = (behind[name].reshape(shape, copy=False) for name in ("dx", "x"))
    binder = getattr(import_module("tapeless.ops.linear.cpu"), linear.direction)
    added = frozenset(argument.name for argument in linear.writes if argument.mode == "add")
    options = {"add": added} if added else {}
    natives: list[Native] = binder(
        *(given.get(name) for name in linear.signature.arguments), scratch=scratch, **options, **more
    )
    return natives
