"""Proves that a lowered program computes what the program it came from computes.

First the parts beside the original's calls: each is carried out once, in its order, and is the same call but for
gradients that are written before they are added to, and inputs that are not given. Then each fused call beside its
parts: what it reads and leaves, and that nobody reads what it does not leave. Last, the list without its groups is
proven like any other; phases that it leaves out stand there as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tapeless.errors import ProgramError
from tapeless.lowering.omitted import without
from tapeless.lowering.writes import first_writes
from tapeless.program.call import Argument, Buffer, Call, Program
from tapeless.program.lowered import FusedCall, LoweredProgram, arguments_of, is_read
from tapeless.program.verify import verify


def verify_lowered(lowered: LoweredProgram) -> None:
    _check_spans(lowered)
    parts = lowered.parts
    _check_complete(lowered, parts)
    for number, call in parts.items():
        _check_part(lowered, call, lowered.original.calls[number])
    for index, call in enumerate(lowered.calls):
        if isinstance(call, FusedCall):
            _check_fused(lowered, index, call)
    flat = flattened(lowered)
    if flat.calls != lowered.original.calls:
        verify(flat)


def flattened(lowered: LoweredProgram) -> Program:
    """The list without its groups, and with the calls of other phases."""
    original, parts = lowered.original, lowered.parts
    phases = {call.phase for call in original.calls} if not lowered.phases else {*lowered.phases}
    rest = dict(enumerate(original.calls))
    rest = first_writes(original, rest) if original.lean else rest
    beside = {n: without(call, lowered.omitted) for n, call in rest.items() if call.phase not in phases}
    return Program(tuple(call for _, call in sorted((beside | parts).items())), original.buffers)


def _check_spans(lowered: LoweredProgram) -> None:
    """Each call stands for as many of the original's as it has parts, and they follow one another."""
    last = -1
    if len(lowered.spans) != len(lowered.calls):
        raise ProgramError(f"lowering: {len(lowered.calls)} calls are said to carry out {len(lowered.spans)} spans.")
    for call, (first, end) in zip(lowered.calls, lowered.spans, strict=True):
        if len(call.parts) != end - first + 1:
            raise ProgramError(
                f"lowering: {call.at} has {len(call.parts)} parts, but is said to carry out calls {first} to {end}."
            )
        if first <= last:
            raise ProgramError(
                f"lowering: {call.at} carries out call {first}, which stands before call {last}: it is carried out "
                f"twice, or out of order."
            )
        last = end
    if last >= len(lowered.original.calls):
        raise ProgramError(f"lowering: there is no call {last} to be carried out.")


def _check_complete(lowered: LoweredProgram, parts: dict[int, Call]) -> None:
    for number, call in enumerate(lowered.original.calls):
        asked = not lowered.phases or call.phase in lowered.phases
        if asked and number not in parts and call.phase != "zero":
            raise ProgramError(f"lowering: {call.at} ({call.writes[0].view.name}) is carried out by no call.")
        if not asked and number in parts:
            raise ProgramError(f"lowering: {call.at} is carried out, but its phase {call.phase!r} is not asked for.")
    for name in lowered.omitted:
        buffer = next((each for each in lowered.original.buffers if each.name == name), None)
        if buffer is None or buffer.kind != "input":
            raise ProgramError(f"lowering: {name} is left out, but it is no input.")


def _check_part(lowered: LoweredProgram, part: Call, original: Call) -> None:
    """The same op applied to the same buffers, but for what lowering may change."""
    if (part.op, part.direction, part.scalars, part.phase) != (
        original.op,
        original.direction,
        original.scalars,
        original.phase,
    ):
        raise ProgramError(f"lowering: {part.at} is carried out in place of {original.at}, and is another application.")
    mine, true = ({each.name: each for each in call.arguments} for call in (part, original))
    for name in mine.keys() - true.keys():
        raise ProgramError(f"lowering: {name} of {part.at} ({mine[name].view.name}) is none of {original.at}.")
    for name, argument in true.items():
        found = mine.get(name)
        if found is None:
            if name not in original.signature.optional or argument.view.buffer.name not in lowered.omitted:
                raise ProgramError(f"lowering: {part.at} leaves out {name} ({argument.view.name}), which is given.")
            continue
        if found.view != argument.view:
            raise ProgramError(
                f"lowering: {name} of {part.at} is {found.view.name}, but {argument.view.name} in {original.at}."
            )
        written_first = argument.mode == "add" and found.mode == "write" and argument.view.buffer.kind == "gradient"
        if found.mode != argument.mode and not written_first:
            raise ProgramError(
                f"lowering: {part.at} {found.mode}s {name} ({found.view.name}), but {original.at} {argument.mode}s it."
            )


def _check_fused(lowered: LoweredProgram, index: int, call: FusedCall) -> None:
    """What it says of itself follows from its parts, and what it does not leave is read by none but them."""
    if call.arguments != arguments_of(call.parts, call.intermediates):
        raise ProgramError(f"lowering: {call.at} reads or leaves something else than its parts do together.")
    for buffer in call.intermediates:
        if buffer.kind != "workspace":
            raise ProgramError(f"lowering: {call.at} leaves {buffer.name} unwritten, which is {buffer.kind}.")
        first = next((argument for _, argument in _touching(call.parts, buffer)), None)
        if first is None or first.mode != "write" or not first.view.whole:
            raise ProgramError(f"lowering: {call.at} leaves {buffer.name} unwritten, which it reads from outside.")
        if is_read(lowered.original.calls, lowered.spans[index][1] + 1, buffer):
            raise ProgramError(f"lowering: {call.at} leaves {buffer.name} unwritten, and a later call reads it.")
    for above, below in call.over:
        why = why_not_over(lowered.original.calls, lowered.spans[index], call.parts, above, below)
        if why:
            raise ProgramError(f"lowering: {call.at} writes {above.name} over {below.name}, which {why}.")


def why_not_over(
    calls: Sequence[Call], span: tuple[int, int], parts: Sequence[Call], above: Buffer, below: Buffer
) -> str | None:
    """Why the parts, which carry out a span of a list, cannot write one buffer over another: None where they can, as
    it is written whole when the other was read for the last time, here and later."""
    mine, other = list(_touching(parts, above)), list(_touching(parts, below))
    if above == below or not mine or not other or above.shape != below.shape:
        return "is not like it"
    if {above.kind, below.kind} != {"workspace"}:
        return "is kept"
    first = [argument for number, argument in mine if number == mine[0][0]]
    whole = sum(each.view.stop - each.view.start for each in first) == above.shape[-1]
    if any(each.mode != "write" for each in first) or not whole or other[-1][0] > mine[0][0]:
        return "is still read"
    return "a later call reads" if is_read(calls, span[1] + 1, below) else None


def _touching(parts: Sequence[Call], buffer: Buffer) -> Iterator[tuple[int, Argument]]:
    """By which part, and how: what it reads before what it writes."""
    for number, part in enumerate(parts):
        touched = [each for each in part.arguments if each.view.buffer == buffer]
        yield from ((number, each) for each in sorted(touched, key=lambda argument: argument.mode == "write"))
