"""Inputs that are not given this time (where each document begins, if every row has one) are not read."""

from __future__ import annotations

from dataclasses import replace

from tapeless.program.call import Call


def without(call: Call, omitted: frozenset[str]) -> Call:
    """The call without those of these inputs that it may do without."""
    optional = call.signature.optional
    kept = tuple(each for each in call.arguments if each.name not in optional or each.view.buffer.name not in omitted)
    return call if len(kept) == len(call.arguments) else replace(call, arguments=kept)
