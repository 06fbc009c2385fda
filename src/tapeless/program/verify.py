"""Proves a list of calls sound before it runs. Every refusal names the buffer, the call and the source line.

First each call alone, then the list: its phases and regions, what every buffer holds at every call (`values`), of what
it holds the gradient (`adjoints`), and that the update uses all of it once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from typing import Any

from tapeless.errors import ProgramError
from tapeless.ops import OPS
from tapeless.ops.contract import Spec
from tapeless.program.adjoints import check_adjoints
from tapeless.program.call import Argument, Buffer, Call, Program, View, gradient_name
from tapeless.program.meanings import check_call_meanings, check_one_meaning, check_updated
from tapeless.program.values import Numbered, number

# Engines run a program phase by phase. What is computed again stands between the backward calls.
ORDER = {"zero": 0, "forward": 1, "recompute": 2, "backward": 2, "clip": 3, "update": 4}
READ_ONLY = ("input", "constant", "frozen")


def verify(program: Program) -> tuple[int | None, ...]:
    """Also tells the partner of each call: see `Program.partners`.

    What was proven once is not proven again: the same list, of ops whose Specs are the same."""
    return _proven(program, tuple(OPS[name].SPEC for name in sorted({call.op for call in program.calls})))


@lru_cache(maxsize=128)
def _proven(program: Program, specs: tuple[Spec, ...]) -> tuple[int | None, ...]:
    known = {buffer.name: buffer for buffer in program.buffers}
    for call in program.calls:
        check_call(call)
        for argument in call.arguments:
            if known.get(argument.view.buffer.name) != argument.view.buffer:
                raise ProgramError(f"{argument.view.name}, which {call.at} uses, is not a buffer of this program.")
    check_one_meaning(program)
    _check_regions(program)
    numbered = number(program)
    _check_writes(program)
    partners = numbered.repeated | check_adjoints(program, numbered)
    _check_phases(program)
    _check_zeroed(program)
    _check_update(program, numbered)
    _check_draws(program, numbered)
    return tuple(partners.get(index) for index in range(len(program.calls)))


def check_call(call: Call) -> None:
    """Shapes, types and ways of access, of one call alone."""
    if call.__dict__.get("checked_by") is call.spec:  # in the list that this one was lowered from
        return
    for argument in call.arguments:
        view, width = argument.view, argument.view.buffer.shape[-1]
        if not 0 <= view.start < view.stop <= width:
            raise ProgramError(
                f"wrong columns: {argument.name} of {call.at} takes columns {view.start} to {view.stop} "
                f"of {view.buffer.name}, which has {width}."
            )
        role = argument.view.buffer.role
        if not call.spec.accepts(argument.name, role):
            wanted = call.spec.roles.get(argument.name, "a number")
            raise ProgramError(
                f"wrong role: {argument.view.name} is of role {role}, but {argument.name} of {call.at} "
                f"must be {wanted}."
            )
        signature = call.signature
        allowed: tuple[str, ...] = ("read",)
        if argument.name in signature.updates:
            allowed = ("update",)
        elif argument.name in signature.writes:
            allowed = ("write", "add") if argument.name in signature.adds else ("write",)
        if argument.mode not in allowed:
            raise ProgramError(
                f"wrong access: {call.at} cannot {argument.mode} {argument.name} ({argument.view.name}); "
                f"it takes {' or '.join(allowed)}."
            )
    check_call_meanings(call)
    _check_asked(call)
    for index, one in enumerate(call.arguments):
        for other in call.arguments[index + 1 :]:
            shared = _shared(one.view, other.view)
            if shared and "read" in (one.mode, other.mode) and one.mode != other.mode:
                written, read = (other, one) if one.mode == "read" else (one, other)
                raise ProgramError(
                    f"wrong access: {call.at} writes {written.name} over {read.name}, which it reads: "
                    f"both are {shared.name}."
                )
            if shared and "read" not in (one.mode, other.mode):
                raise ProgramError(
                    f"wrong access: {one.name} and {other.name} of {call.at} both write to {shared.name}."
                )
    try:
        dims = call.dims
    except ValueError as mismatch:
        name, letters, wanted, found = mismatch.args
        raise ProgramError(
            f"wrong shape: {call[name].name} is {found}, but {name} of {call.at} must be {letters} = {wanted}."
        ) from None
    refusal = call.spec.refuse(dims, dict(call.scalars))
    if refusal:
        raise ProgramError(f"{call.at} ({call.arguments[0].view.name}): {refusal}.")
    call.__dict__["checked_by"] = call.spec


def _check_asked(call: Call) -> None:
    """What may be left out is there where it is needed, and something is asked for."""
    found = {argument.name for argument in call.arguments}
    for name, outputs in call.signature.needed_by.items():
        asked = sorted(found.intersection(outputs))
        if asked and name not in found:
            raise ProgramError(
                f"{call.at}: {asked[0]} ({call[asked[0]].name}) is computed from {name}, which is missing."
            )
    if call.direction == "backward" and not any(a.name[1:] in call.spec.forward.reads for a in call.writes):
        raise ProgramError(f"{call.at} asks for no gradient: leave the call out.")


def _shared(one: View, other: View) -> Buffer | None:
    """A buffer of which both have the same columns."""
    if not one.buffer.members and not other.buffer.members and one.buffer.name != other.buffer.name:
        return None
    mine = {part.buffer.name: part for part in one.parts}
    for b in other.parts:
        a = mine.get(b.buffer.name)
        if a is not None and a.start < b.stop and b.start < a.stop:
            return a.buffer
    return None


def _check_regions(program: Program) -> None:
    """One region of a kind, of all there is of it; gradients lie as the weights do, so that one pass fits both."""
    for region in program.buffers:
        if region.members:
            alike = [buffer for buffer in program.buffers if buffer.kind == region.kind]
            inside = {member.name for member in region.members}
            others = [buffer for buffer in alike if not buffer.members and buffer.name not in inside]
            second = [buffer for buffer in alike if buffer.members and buffer is not region]
            if others or second:
                what = others[0].name if others else second[0].name
                raise ProgramError(
                    f"{what} is no part of the region {region.name}: a region has all buffers of its kind, "
                    f"so declare it once, after them{_first_use(program, (others or second)[0])}."
                )
    gradients = [buffer.name for buffer in program.buffers if buffer.kind == "gradient" and not buffer.members]
    wanted = [gradient_name(weight.name) for weight in program.trained]
    present = [name for name in wanted if name in gradients]
    for found, due in zip(gradients, present, strict=False):
        if found != due:
            buffer = next(each for each in program.buffers if each.name == found)
            raise ProgramError(
                f"{found} stands where {due} is due: gradients lie in the order of their weights"
                f"{_first_use(program, buffer)}."
            )


def _first_use(program: Program, buffer: Buffer) -> str:
    users = [c.at for c in program.calls if any(_shared(a.view, buffer.all) for a in c.arguments)]
    return f" ({users[0]} uses it)" if users else ""


def _check_writes(program: Program) -> None:
    """Who may write what: weights the update, gradients who adds to them, or where nobody zeroes them who is the first;
    inputs, constants, frozen weights nobody."""
    lent, written = program.lent_gradients is not None, defaultdict[str, list[View]](list)
    for call in program.calls:
        for argument in call.writes:
            kind = argument.view.buffer.kind
            if kind in READ_ONLY:
                raise ProgramError(
                    f"{argument.view.name} is overwritten by {call.at}: it is {_a(kind)}, which no call may write."
                )
            if kind == "weight" and call.phase != "update":
                raise ProgramError(
                    f"{argument.view.name} is overwritten by {call.at}: only an update, in its phase, writes weights."
                )
            before = written[argument.view.buffer.name]
            first = lent and not argument.view.buffer.members and not argument.view.meets(before)
            if kind == "gradient" and argument.mode != "add" and call.phase != "zero" and not first:
                raise ProgramError(
                    f"{argument.view.parts[0].buffer.name} is overwritten by {call.at}: gradients of weights are "
                    f"zeroed first, or written by the first, and from then on each must be added to."
                )
            before.append(argument.view)


def _a(kind: str) -> str:
    if kind == "frozen":
        return "a frozen weight"
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _check_phases(program: Program) -> None:
    last: Call | None = None
    for call in program.calls:
        if last is not None and ORDER[call.phase] < ORDER[last.phase]:
            raise ProgramError(
                f"out of order: {call.at} ({call.arguments[0].view.name}) is in phase {call.phase!r}, but stands after "
                f"{last.at}, which is in phase {last.phase!r}."
            )
        wanted = "backward" if call.phase == "backward" else "forward"
        if call.direction != wanted:
            raise ProgramError(
                f"out of order: {call.at} ({call.arguments[0].view.name}) is in phase {call.phase!r}, "
                f"which has {wanted} calls only."
            )
        last = call


def _check_zeroed(program: Program) -> None:
    """Each gradient once, and nothing else: a step that adds to what is there leaves this phase out."""
    zeroed: Counter[Buffer] = Counter()
    for call in program.phase("zero"):
        for argument in call.arguments:
            for part in argument.view.parts:
                if call.op != "zero" or part.buffer.kind != "gradient" or not part.whole or zeroed[part.buffer]:
                    raise ProgramError(
                        f"{part.name} is written by {call.at} in phase 'zero', which sets each whole gradient to zero, "
                        f"once, and does nothing else."
                    )
                zeroed[part.buffer] += 1
    if program.lent_gradients:
        return
    adding = {a.view.buffer: call for call in program.calls for a in call.writes if a.view.buffer.kind == "gradient"}
    for buffer, call in adding.items():
        if not buffer.members and not zeroed[buffer]:
            raise ProgramError(f"{buffer.name}, to which {call.at} adds, is never set to zero.")


def _check_update(program: Program, numbered: Numbered) -> None:
    """One update, of all weights by all gradients, scaled by the clip of the norm of all gradients, and made only where
    that clip finds norm and loss finite."""
    updates = program.phase("update")
    for clip in () if updates else program.phase("clip"):
        raise ProgramError(
            f"{clip.arguments[0].view.name}, which {clip.at} writes, is used by no update: there is none."
        )
    for extra in updates[1:]:
        raise ProgramError(f"{extra.arguments[0].view.name} is updated again by {extra.at}: one update is a step.")
    for call in updates:
        found = {argument.name: argument for argument in call.arguments}
        for name, wanted in (("weights", "weight"), ("gradients", "gradient")):
            _check_whole(program, call, found[name], wanted)
        clip = _maker(program, numbered, call, "scale", "clip")
        if _maker(program, numbered, call, "finite", "clip") != clip:
            raise ProgramError(f"{call['finite'].name}, finite of {call.at}, must be that of {clip.at}, as scale is.")
        _maker(program, numbered, clip, "loss", *(each.call.op for each in numbered.calls if each.call.spec.fused))
        norm = _maker(program, numbered, clip, "norm", "global_norm")
        _check_whole(program, norm, next(a for a in norm.arguments if a.name == "gradients"), "gradient")
        check_updated(program, call, norm)


def _check_draws(program: Program, numbered: Numbered) -> None:
    """Random numbers are drawn where something is learned, are counted first, so that no two batches have the same, and
    are other ones at every call."""
    seen: dict[Any, Call] = {}
    learns = any(call.direction == "backward" for call in program.calls)
    for index in numbered.applications():
        applied = numbered.calls[index]
        call = applied.call
        if not call.spec.random:
            continue
        y = call.writes[0].view.name
        if not learns:
            raise ProgramError(f"random: {call.at} ({y}) draws random numbers in a list that learns nothing.")
        _maker(program, numbered, call, "draws", "count_draws")
        counter = (applied.inputs["seed"], applied.inputs["draws"], dict(call.scalars)["site"])
        if counter in seen:
            other = seen[counter]
            raise ProgramError(
                f"random: {call.at} ({y}) draws the numbers of {other.at} ({other.writes[0].view.name}) again, "
                f"as both have site={counter[2]!r}."
            )
        seen[counter] = call


def _check_whole(program: Program, call: Call, argument: Argument, kind: str) -> None:
    everything = {buffer for buffer in program.buffers if buffer.kind == kind and not buffer.members}
    covered = {part.buffer for part in argument.view.parts if part.whole}
    if covered != everything:
        odd = sorted(buffer.name for buffer in covered ^ everything)[0]
        raise ProgramError(
            f"{argument.view.name}, {argument.name} of {call.at}, must be all {kind}s there are: see {odd}."
        )


def _maker(program: Program, numbered: Numbered, call: Call, argument: str, *ops: str) -> Call:
    """The call whose result this argument is: of one of these ops."""
    value = numbered.calls[program.calls.index(call)].inputs[argument]
    for each in numbered.calls:
        if each.call.op in ops and value in each.outputs.values():
            return each.call
    raise ProgramError(f"{call[argument].name}, {argument} of {call.at}, must be the result of {' or '.join(ops)}.")
