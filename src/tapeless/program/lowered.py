"""What lowering makes of a program: a list of calls again, some of them fused, each knowing what it carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tapeless.ops.contract import Dims, Signature, Spec
from tapeless.program.call import Argument, Buffer, Call, Program, View

Over = tuple[tuple[Buffer, Buffer], ...]


@dataclass(frozen=True, repr=False)
class FusedCall(Call):
    """Consecutive calls that a backend runs as one. `arguments` follow from the parts: what is read from outside, and
    what is left behind; an argument is named by its part and its name there. `intermediates` are what the parts hand to
    each other alone: what lies there afterwards is anything."""

    made_of: tuple[Call, ...] = ()
    between: tuple[Buffer, ...] = ()
    places: Over = ()

    @property
    def parts(self) -> tuple[Call, ...]:
        return self.made_of

    @property
    def intermediates(self) -> tuple[Buffer, ...]:
        return self.between

    @property
    def over(self) -> Over:
        return self.places

    @property
    def title(self) -> str:
        return " + ".join(part.title for part in self.made_of)

    @property
    def spec(self) -> Spec:
        """What its arguments are, by the names they have here."""
        shapes, roles = dict[str, str](), dict[str, str]()
        for number, part in enumerate(self.made_of):
            for name in part.signature.arguments:
                shapes[named(number, name)] = " ".join(part.spec.letters(name))
                if name in part.spec.roles:
                    roles[named(number, name)] = part.spec.roles[name]
        return Spec(self.op, shapes, self.signature, roles=roles)

    @property
    def signature(self) -> Signature:
        writes, reads = dict[str, str](), []
        for number, part in enumerate(self.made_of):
            formulas = part.signature.writes
            for name in part.signature.arguments:
                if self.has(named(number, name)):
                    if name in formulas:
                        writes[named(number, name)] = formulas[name]
                    else:
                        reads.append(named(number, name))
        return Signature(writes, tuple(reads))

    @cached_property
    def dims(self) -> Dims:
        found: Dims = {}
        for part in self.made_of:
            found = part.dims | found
        return found

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.made_of)


def fused(rule: str, parts: Sequence[Call], between: Sequence[Buffer], over: Over = ()) -> FusedCall:
    """The fused call that these make, by the name of the rule that fuses them."""
    last = parts[-1]
    return FusedCall(
        rule,
        last.direction,
        arguments_of(parts, between),
        (),
        last.phase,
        last.section,
        last.source,
        last.stack,
        tuple(parts),
        tuple(between),
        over,
    )


def arguments_of(parts: Sequence[Call], between: Sequence[Buffer]) -> tuple[Argument, ...]:
    """What calls together read that none of them has written before, and what they leave, but for intermediates: as
    they first do it, written or added to."""
    inside, found = set(between), list[Argument]()
    for number, part in enumerate(parts):
        for argument in part.arguments:
            if argument.view.buffer not in inside and not _covered(argument, found):
                found.append(replace(argument, name=named(number, argument.name)))
    return tuple(found)


def _covered(argument: Argument, before: Sequence[Argument]) -> bool:
    """Whether it is known already: all its columns are written, or they are read and not more than that."""
    known = [each for each in before if each.view.buffer == argument.view.buffer]
    if covers([each.view for each in known if each.mode != "read"], argument.view):
        return True
    return argument.mode == "read" and any(covers([each.view], argument.view) for each in known)


def covers(views: Sequence[View], view: View) -> bool:
    """Whether every column of a view is one of these views' of the same buffer."""
    reached = view.start
    for each in sorted(views, key=lambda each: each.start):
        if each.start <= reached:
            reached = max(reached, each.stop)
    return reached >= view.stop


def named(number: int, name: str) -> str:
    """What an argument of a part is called as one of the fused call."""
    return f"{number}.{name}"


def intermediates(calls: Sequence[Call], first: int, last: int) -> tuple[Buffer, ...]:
    """Workspace that these calls of a list write whole before any of them reads it, and that no later call reads before
    it is written whole again."""
    found: list[Buffer] = []
    seen: set[Buffer] = set()
    for call in calls[first : last + 1]:
        for argument in (*(a for a in call.arguments if a.mode == "read"), *call.writes):
            buffer = argument.view.buffer
            anew = argument.mode == "write" and argument.view.whole and buffer.kind == "workspace"
            if buffer not in seen and anew and not is_read(calls, last + 1, buffer):
                found.append(buffer)
            seen.add(buffer)
    return tuple(found)


def is_read(calls: Sequence[Call], since: int, buffer: Buffer) -> bool:
    """Whether what a buffer holds is used, from this call of a list on, before it is written anew."""
    for call in calls[since:]:
        touched = [argument for argument in call.arguments if argument.view.buffer == buffer]
        if touched:
            return any(argument.mode != "write" or not argument.view.whole for argument in touched)
    return False


@dataclass(frozen=True, repr=False)
class LoweredProgram(Program):
    """The calls that an engine runs. `phases`: those of the original that it carries out; None for the list that is
    planned, of which the lists for some phases are made."""

    made_of: Program | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    phases: tuple[str, ...] | None = None
    omitted: frozenset[str] = frozenset()  # inputs that are not given this time

    @property
    def original(self) -> Program:
        assert self.made_of is not None
        return self.made_of

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return self.ranges

    @property
    def parts(self) -> dict[int, Call]:
        """Every call that is carried out, alone or in a fused one, by the number of its original."""
        found: dict[int, Call] = {}
        for call, (first, _) in zip(self.calls, self.ranges, strict=True):
            found |= enumerate_from(first, call.parts)
        return found

    @property
    def groups(self) -> dict[tuple[int, int], FusedCall]:
        """Fused calls, by the span of the calls that they are made of."""
        pairs = zip(self.ranges, self.calls, strict=True)
        return {span: call for span, call in pairs if isinstance(call, FusedCall)}


def enumerate_from(first: int, calls: Sequence[Any]) -> dict[int, Any]:
    return dict(enumerate(calls, first))
