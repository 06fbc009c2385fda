"""Proves a list of calls sound before it runs. Every refusal names the buffer, the call and the source line.

The heart is value numbering: each column of each buffer carries the number of the value it holds. A call that
means the same and reads the same values yields the same number, so a recomputation restores a value, and
anything else that overwrites it does not. A backward call must find, in every buffer it shares with its
forward partner, the very value its partner had there.
"""

from __future__ import annotations

from typing import Any

from tapeless.errors import ProgramError
from tapeless.program.call import PREPARED, Buffer, Call, Program, View, gradient_name

UNWRITTEN = -1


def verify(program: Program) -> None:
    known = {buffer.name for buffer in program.buffers}
    for call in program.calls:
        check_call(call)
        for argument in call.arguments:
            if argument.view.buffer.name not in known:
                raise ProgramError(f"{argument.view.name}, which {_at(call)} uses, is not a buffer of this program.")
    partners = _partners(program)
    _check_values(program, partners)
    _check_gradients(program, partners)


def _at(call: Call) -> str:
    return f"{call.title} at {call.source}"


def check_call(call: Call) -> None:
    """Shapes, types and ways of access, of one call alone."""
    for argument in call.arguments:
        view, width = argument.view, argument.view.buffer.shape[-1]
        if not 0 <= view.start < view.stop <= width:
            raise ProgramError(
                f"wrong columns: {argument.name} of {_at(call)} takes columns {view.start} to {view.stop} "
                f"of {view.buffer.name}, which has {width}."
            )
        wanted, found = call.spec.dtype(argument.name), argument.view.buffer.dtype
        if wanted != found:
            raise ProgramError(
                f"wrong type: {argument.view.name} holds {found}, but {argument.name} of {_at(call)} must be {wanted}."
            )
        signature = call.signature
        allowed: tuple[str, ...] = ("read",)
        if argument.name in signature.updates:
            allowed = ("update",)
        elif argument.name in signature.writes:
            allowed = ("write", "add") if argument.name in signature.adds else ("write",)
        if argument.mode not in allowed:
            raise ProgramError(
                f"wrong access: {_at(call)} cannot {argument.mode} {argument.name} ({argument.view.name}); "
                f"it takes {' or '.join(allowed)}."
            )
    for index, one in enumerate(call.writes):
        for other in call.writes[index + 1 :]:
            a, b = one.view, other.view
            if a.buffer == b.buffer and a.start < b.stop and b.start < a.stop:
                raise ProgramError(
                    f"wrong access: {one.name} and {other.name} of {_at(call)} both write to {a.buffer.name}."
                )
    try:
        dims = call.dims
    except ValueError as mismatch:
        name, letters, wanted, found = mismatch.args
        raise ProgramError(
            f"wrong shape: {call[name].name} is {found}, but {name} of {_at(call)} must be {letters} = {wanted}."
        ) from None
    refusal = call.spec.refuse(dims, dict(call.scalars))
    if refusal:
        raise ProgramError(f"{_at(call)} ({call.arguments[0].view.name}): {refusal}.")


def _needs_partner(call: Call) -> bool:
    """A forward call whose inputs take a gradient: not inputs, constants, or what passes through unchanged."""
    if call.phase != "forward" or call.direction != "forward" or call.spec.backward is None:
        return False
    wants = {name[1:] for name in call.spec.backward.writes}
    return any(
        argument.name in wants and argument.view.buffer.kind not in ("input", "constant") for argument in call.reads
    )


def _are_partners(forward: Call, backward: Call) -> bool:
    """The same op on the same buffers: every argument that both have is the same."""
    if forward.op != backward.op:
        return False
    mine = {argument.name: argument.view for argument in forward.arguments}
    return all(mine[argument.name] == argument.view for argument in backward.reads if argument.name in mine)


def _partners(program: Program) -> dict[int, int]:
    """backward call → its forward call, by index. A program without a backward phase has no partners."""
    backwards = [i for i, call in enumerate(program.calls) if call.direction == "backward"]
    if not backwards:
        return {}
    forwards = [i for i, call in enumerate(program.calls) if _needs_partner(call)]
    unmatched = [i for i in backwards if not program.calls[i].spec.fused]
    mirrored = list(zip(unmatched, reversed(forwards), strict=False))
    if len(unmatched) == len(forwards) and all(_are_partners(program.calls[f], program.calls[b]) for b, f in mirrored):
        return dict(mirrored)
    for index in forwards:  # something is wrong: what?
        call = program.calls[index]
        if not any(_are_partners(call, program.calls[i]) for i in unmatched):
            raise ProgramError(
                f"no backward: {_at(call)} writes {call.writes[0].view.name}, "
                f"but no backward call takes the same buffers."
            )
    partners = {}
    for index in unmatched:
        backward = program.calls[index]
        candidates = [i for i in forwards if _are_partners(program.calls[i], backward)]
        if not candidates:
            raise ProgramError(
                f"no forward: {_at(backward)} writes {backward.writes[0].view.name}, "
                f"but no forward call has the same buffers."
            )
        if candidates[-1] != forwards[-1]:
            due = program.calls[forwards[-1]]
            raise ProgramError(
                f"out of order: {_at(backward)} ({backward.writes[0].view.name}) stands where the backward of "
                f"{_at(due)} ({due.writes[0].view.name}) is due."
            )
        partners[index] = forwards.pop()
    if forwards:
        call = program.calls[forwards[0]]
        raise ProgramError(
            f"no backward: {_at(call)} writes {call.writes[0].view.name}, "
            f"but the only backward call on the same buffers belongs to another forward."
        )
    return partners


class _Values:
    """Which value each buffer holds, as a number; one for each stretch of columns that some view tells apart."""

    def __init__(self, program: Program) -> None:
        self._numbers: dict[Any, int] = {}
        self._last_writer: dict[str, Call] = {}
        edges = {buffer.name: {0, buffer.shape[-1]} for buffer in program.buffers}
        for call in program.calls:
            for argument in call.arguments:
                edges[argument.view.buffer.name] |= {argument.view.start, argument.view.stop}
        self._edges = {name: sorted(found) for name, found in edges.items()}
        self._held: dict[str, list[int]] = {}
        for buffer in program.buffers:
            start = self._number(("initial", buffer.name)) if buffer.kind in PREPARED else UNWRITTEN
            self._held[buffer.name] = [start] * (len(self._edges[buffer.name]) - 1)

    def _number(self, meaning: Any) -> int:
        return self._numbers.setdefault(meaning, len(self._numbers))

    def _stretch(self, view: View, part: Buffer) -> slice:
        if view.buffer.members:
            return slice(None)
        edges = self._edges[part.name]
        return slice(edges.index(view.start), edges.index(view.stop))

    def read(self, view: View) -> tuple[int, ...]:
        return tuple(n for part in view.buffer.parts for n in self._held[part.name][self._stretch(view, part)])

    def unwritten(self, view: View) -> Buffer | None:
        for part in view.buffer.parts:
            if UNWRITTEN in self._held[part.name][self._stretch(view, part)]:
                return part
        return None

    def write(self, view: View, meaning: Any, call: Call) -> None:
        for part in view.buffer.parts:
            stretch, held = self._stretch(view, part), self._held[part.name]
            held[stretch] = [self._number((meaning, part.name))] * len(held[stretch])
            self._last_writer[part.name] = call

    def last_writer(self, view: View) -> Call:
        return self._last_writer[view.buffer.parts[0].name]


def _check_values(program: Program, partners: dict[int, int]) -> None:
    values = _Values(program)
    seen: list[dict[str, tuple[int, ...]]] = []  # per call: what each of its buffers held when it had run
    for index, call in enumerate(program.calls):
        for argument in call.reads:
            missing = values.unwritten(argument.view)
            if missing is not None:
                fault = "added to before it is initialised" if argument.mode == "add" else "read before it is written"
                raise ProgramError(f"{missing.name} is {fault}, as {argument.name} of {_at(call)}.")
        inputs = {argument.name: values.read(argument.view) for argument in call.reads}
        if index in partners:
            forward = program.calls[partners[index]]
            for name, value in inputs.items():
                if value != seen[partners[index]].get(name, value):
                    culprit = values.last_writer(call[name])
                    raise ProgramError(
                        f"{call[name].name} is overwritten by {_at(culprit)} while {_at(call)} "
                        f"still needs what {_at(forward)} had there."
                    )
        meaning = (call.meaning, tuple(inputs.items()))
        for argument in call.writes:
            values.write(argument.view, (meaning, argument.name), call)
        outputs = {argument.name: values.read(argument.view) for argument in call.writes}
        seen.append(inputs | outputs)


def _check_gradients(program: Program, partners: dict[int, int]) -> None:
    """Every weight of a program that goes backward has a gradient that some backward call produces, the gradient of
    each weight goes to its own buffer, and nothing overwrites what has been produced."""
    backward = [call for call in program.calls if call.direction == "backward"]
    if not backward:
        return
    for index, partner in partners.items():
        _check_own_gradients(program.calls[partner], program.calls[index])
    _check_kept_gradients(program)
    produced: dict[str, set[tuple[int, int]]] = {}
    for call in backward:
        for argument in call.writes:
            view = argument.view
            produced.setdefault(view.buffer.name, set()).add((view.start, view.stop))
    for weight in program.weights:
        covered = end = 0
        for start, stop in sorted(produced.get(gradient_name(weight.name), ())):
            covered += max(0, stop - max(start, end))
            end = max(end, stop)
        missing = weight.shape[-1] - covered
        if missing:
            part = "" if missing == weight.shape[-1] else f" in {missing} of {weight.shape[-1]} columns"
            readers = [c for c in program.calls if any(a.view.buffer == weight for a in c.arguments)]
            reader = f"which {_at(readers[0])} reads" if readers else "which no call reads"
            raise ProgramError(
                f"no gradient: no backward call produces {gradient_name(weight.name)}{part}, "
                f"the gradient of {weight.name}, {reader}."
            )


def _check_own_gradients(forward: Call, backward: Call) -> None:
    weights = {a.name: a.view for a in forward.reads if a.view.buffer.kind == "weight"}
    for argument in backward.writes:
        weight = weights.get(argument.name[1:])
        if weight is not None:
            columns = (weight.start, weight.stop)
            own = (gradient_name(weight.buffer.name), *columns)
            if (argument.view.buffer.name, argument.view.start, argument.view.stop) != own:
                raise ProgramError(
                    f"wrong gradient: {argument.name} of {_at(backward)} goes to {argument.view.name}, "
                    f"but {argument.name[1:]} is {weight.name}."
                )


def _check_kept_gradients(program: Program) -> None:
    """A gradient that a backward call has produced is added to, never written again."""
    produced: dict[str, list[tuple[Call, View]]] = {}
    for call in program.calls:
        for argument in call.writes:
            for part in argument.view.buffer.parts if argument.mode == "write" else ():
                for earlier, view in produced.get(part.name, ()):
                    whole = bool(argument.view.buffer.members)
                    if whole or (argument.view.start < view.stop and view.start < argument.view.stop):
                        raise ProgramError(
                            f"{part.name} is overwritten by {_at(call)}, after {_at(earlier)} has produced its part: "
                            f"it must be added to."
                        )
            if call.direction == "backward" and argument.view.buffer.kind == "gradient":
                produced.setdefault(argument.view.buffer.name, []).append((call, argument.view))
