"""A program as something to read: each call with its formulas, the buffers' own names put in.

Only data is made here; the command line draws it, and so can anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapeless.program.call import Argument, Call, Program

if TYPE_CHECKING:
    from tapeless.program.arena import Plan

# Scalars that say where things lie in memory, of which a deep model has hundreds.
SPANS = ("decayed", "sections")
SIGNS = {"write": "=", "add": "+=", "update": "←"}
UNWRITTEN = "·"


def listing(program: Program) -> list[dict[str, Any]]:
    return [describe(program, number) for number in range(len(program.calls))]


def describe(program: Program, number: int) -> dict[str, Any]:
    call = program.calls[number]
    return {
        "call": number,
        "op": call.op,
        "direction": call.direction,
        "phase": call.phase,
        "section": call.section,
        "partner": program.partners[number],
        "source": call.source,
        "stack": list(call.stack),
        "flops": call.flops,
        "results": [result for part in call.parts for result in results_of(call, part)],
        "reads": {argument.name: argument.view.name for argument in call.arguments if argument.mode == "read"},
        "scalars": {name: value for name, value in call.scalars if name not in SPANS},
    }


def planned(plan: Plan) -> dict[str, Any]:
    """Every buffer's place, and what all of it comes to."""
    return {
        "precision": plan.precision.name,
        "parameters": plan.parameters,
        "peak_bytes": plan.peak_bytes,
        "peak_call": plan.peak_call,
        "flops": plan.flops,
        "calls": len(plan.program.calls),
        "live_bytes": plan.live_bytes,
        "buffers": [
            {
                "name": placement.buffer.name,
                "kind": placement.kind,
                "shape": list(placement.buffer.shape),
                "dtype": placement.dtype,
                "offset": placement.offset,
                "bytes": placement.bytes,
                "first_call": placement.first_call,
                "last_call": placement.last_call,
                "ranges": [list(span) for span in placement.ranges],
            }
            for placement in plan.placements.values()
            if not placement.buffer.members
        ],
    }


def results_of(call: Call, part: Call) -> list[dict[str, Any]]:
    """What a part of a call computes, or a call by itself. What a fused call may leave unwritten has its own sign."""
    between = call.intermediates
    return [_result(part, each) | ({"sign": UNWRITTEN} if each.view.buffer in between else {}) for each in part.writes]


def _result(call: Call, argument: Argument) -> dict[str, Any]:
    return {
        "argument": argument.name,
        "buffer": argument.view.name,
        "shape": list(argument.view.shape),
        "access": argument.mode,
        "sign": SIGNS[argument.mode],
        "formula": call.signature.writes[argument.name],
        "reads_as": _with_names(call, call.signature.writes[argument.name]),
    }


def _with_names(call: Call, formula: str) -> str:
    """`x @ weight + bias` → `norm1 @ attn.qkv.weight + attn.qkv.bias`, names relative to the section."""
    names = {argument.name: local_name(argument.view.name, call.section) for argument in call.arguments}
    names |= {name: f"{value:g}" for name, value in call.scalars if isinstance(value, float)}
    for name in call.signature.optional:
        if name not in names:
            formula = formula.replace(f" + {name}", "")
    # A letter that carries a hat (x̂, m̂) is a value of its own, not the argument.
    pattern = rf"(?<![A-Za-z0-9_.])({'|'.join(map(re.escape, names))})(?![A-Za-z0-9_\u0302])"
    return re.sub(pattern, lambda match: names[match.group()], formula) if names else formula


def local_name(name: str, section: str) -> str:
    """Names inside their own section without its prefix: `blocks.0.attn.qkv` → `attn.qkv`."""
    return name.removeprefix(f"{section}.") if section else name


def runs_of_sections(calls: Sequence[tuple[int, Call]]) -> list[tuple[str, list[tuple[int, Call]]]]:
    """Numbered calls in stretches that belong to the same section."""
    runs: list[tuple[str, list[tuple[int, Call]]]] = []
    for number, call in calls:
        if not runs or runs[-1][0] != call.section:
            runs.append((call.section, []))
        runs[-1][1].append((number, call))
    return runs
