"""What runs: `lower` makes of a program the list of calls that an engine runs, and proves that it computes the same.

Every rewrite is a rule with a name. One holds for every backend (`first_writes`: the first call that adds to a zeroed
gradient writes it, and nothing is left to be zeroed); others a backend asks for (`rules.Rules`): inputs that are not
given are left out, and groups of calls are fused into one, some of which write over what they read.

A program is lowered once to be planned. What runs of it, for some phases and some inputs, is lowered from that, with
the same groups, over the same placements. Who writes a program knows nothing of this, and who looks at one (`walk`)
sees the calls that were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tapeless.lowering.omitted import without
from tapeless.lowering.rules import NO_RULES, Fusion, Rules
from tapeless.lowering.verify import verify_lowered, why_not_over
from tapeless.lowering.writes import first_writes
from tapeless.program.call import Call, Program, gradient_name
from tapeless.program.lowered import FusedCall, LoweredProgram, fused, intermediates

Span = tuple[int, int]

__all__ = ["NO_RULES", "Fusion", "Rules", "gradient_name", "lower", "lowered_for"]


def lower(program: Program, rules: Rules = NO_RULES, *, verified: bool = True) -> LoweredProgram:
    """The list that is planned: all phases, fused as the rules say. Gradients are zeroed and added to, so that several
    batches can be, unless the program is lean. `verified`: not, where nothing but its size is asked for."""
    calls = dict(enumerate(program.calls))
    if program.lean:
        calls = first_writes(program, calls)
    groups = dict(_matched(program, rules))
    return _assembled(program, calls, groups, None, frozenset(), verified)


def lowered_for(
    planned: Program, phases: tuple[str, ...] = (), omitted: frozenset[str] = frozenset()
) -> LoweredProgram:
    """The list that runs for these phases, or for all, without these inputs, of a program that was lowered to be
    planned: the same calls are fused where all of them are in these phases. Where it zeroes gradients, they are written
    first instead."""
    return _lowered_for(planned, phases, omitted)


@lru_cache(maxsize=128)
def _lowered_for(planned: Program, phases: tuple[str, ...], omitted: frozenset[str]) -> LoweredProgram:
    base = planned if isinstance(planned, LoweredProgram) else lower(planned)
    chosen = {number: call for number, call in base.parts.items() if not phases or call.phase in phases}
    if not base.original.lean:
        chosen = first_writes(base.original, chosen)
    chosen = {number: without(call, omitted) for number, call in chosen.items()}
    groups = {span: call for span, call in base.groups.items() if set(_numbers(span)) <= chosen.keys()}
    return _assembled(base.original, chosen, groups, phases, omitted, True)


def _matched(program: Program, rules: Rules) -> list[tuple[Span, Fusion]]:
    """From the first call to the last, none in two of them; of several rules the first that matches."""
    found, number = list[tuple[Span, Fusion]](), 0
    while number < len(program.calls):
        for rule in rules.fusions:
            after = rule.match(program.calls, number)
            if after is not None:
                found.append(((number, after - 1), rule))
                number = after - 1
                break
        number += 1
    return found


def _assembled(
    program: Program,
    calls: Mapping[int, Call],
    groups: Mapping[Span, Fusion | FusedCall],
    phases: tuple[str, ...] | None,
    omitted: frozenset[str],
    verified: bool,
) -> LoweredProgram:
    made: list[tuple[Span, Call]] = []
    inside = {number for span in groups for number in _numbers(span)}
    for span, by in groups.items():
        parts = [calls[number] for number in _numbers(span)]
        made.append((span, _refused(by, parts) if isinstance(by, FusedCall) else _fused(program, by, span, parts)))
    made += [((number, number), call) for number, call in calls.items() if number not in inside]
    made.sort(key=lambda each: each[0])
    spans = tuple(span for span, _ in made)
    lowered = LoweredProgram(
        tuple(call for _, call in made),
        program.buffers,
        _partners(program, spans),
        program.lean,
        program,
        spans,
        phases,
        omitted,
    )
    if verified:
        verify_lowered(lowered)
    return lowered


def _fused(program: Program, rule: Fusion, span: Span, parts: list[Call]) -> FusedCall:
    over = tuple(pair for pair in rule.over(parts) if why_not_over(program.calls, span, parts, *pair) is None)
    return fused(rule.name, parts, intermediates(program.calls, *span), over)


def _refused(before: FusedCall, parts: list[Call]) -> FusedCall:
    """The same of parts that have changed since."""
    return fused(before.op, parts, before.between, before.over)


def _partners(program: Program, spans: tuple[Span, ...]) -> tuple[int | None, ...]:
    """Of each call, that which carries out the partner of one of its parts."""
    if not program.partners:
        return ()
    place = {number: at for at, span in enumerate(spans) for number in _numbers(span)}
    found: list[int | None] = []
    for span in spans:
        partners = [partner for number in _numbers(span) if (partner := program.partners[number]) is not None]
        found.append(next((place[each] for each in partners if each in place), None))
    return tuple(found)


def _numbers(span: Span) -> range:
    return range(span[0], span[1] + 1)
