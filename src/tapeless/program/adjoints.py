"""Of what each buffer holds the gradient: the proof that a list of calls computes the derivative of its loss.

The gradient of a value (its adjoint) is the sum of what comes back through everything that used it. What comes back
through one argument of one application is an *atom*; an application that passes gradients on (a residual) has no atom
of its own, but the gradient of its result. So the list itself says, before anything runs, which atoms the gradient of
every value is the sum of. A backward call makes the atoms of its application, if what it takes as dy holds the gradient
of its application's result and no more. At the end the gradient of each weight must hold the weight's adjoint.

With every backward the derivative of its forward, which is proven op by op, the whole is the chain rule.
"""

from __future__ import annotations

from collections import Counter

from tapeless.errors import ProgramError
from tapeless.program.call import Argument, Call, Program, View, gradient_name
from tapeless.program.columns import Columns, added, all_of, cut, empty, nothing, put, things, width_of
from tapeless.program.values import Application, BufferColumns, Numbered, is_application

Atom = tuple[int, str]  # an application, by the index of its call, and the argument that takes the gradient


def check_adjoints(program: Program, numbered: Numbered) -> dict[int, int]:
    """The forward call that each backward call belongs to. Nothing to be proven where nothing goes backward."""
    if not any(call.direction == "backward" for call in program.calls):
        return {}
    _check_losses(numbered)
    active = Active(program, numbered)
    _check_partners_exist(numbered, active)
    return Walk(program, numbered, active).check()


def _check_losses(numbered: Numbered) -> None:
    """What is told as a loss is one whose gradient is taken; of several, the gradient is that of their sum."""
    for applied in numbered.calls:
        if applied.call.spec.fused and applied.call.direction == "backward":
            for argument in applied.call.writes:
                kept = argument.view.buffer.kind == "output"
                if kept and numbered.final[argument.view] != applied.outputs[argument.name]:
                    raise ProgramError(
                        f"{argument.view.name} is overwritten after {applied.call.at} has put its {argument.name} "
                        f"there: what is told in the end is not what the gradients belong to."
                    )


class Active:
    """Which applications lie between a trained weight and the loss, and what comes back to each value there."""

    def __init__(self, program: Program, numbered: Numbered) -> None:
        self._calls = numbered.calls
        self.trained = self._depending(numbered)
        self.indices = self._reaching(numbered)
        self._check_outputs()
        self._check_used(numbered)
        self.adjoints = {value: empty(width) for value, width in numbered.widths.items()}
        for index in reversed(self.indices):
            self._pass_back(index)

    def _depending(self, numbered: Numbered) -> set[int]:
        """The values that depend on a trained weight."""
        found = {value for columns in numbered.initial.values() for value in things(columns)}
        for index in numbered.applications():
            applied = self._calls[index]
            if found & self._differentiated(applied):
                found |= {value for columns in applied.outputs.values() for value in things(columns)}
        return found

    def _reaching(self, numbered: Numbered) -> list[int]:
        """The applications that depend on a trained weight and reach a loss."""
        reached: set[int] = set()
        found = []
        for index in reversed(numbered.applications()):
            applied = self._calls[index]
            outputs = {value for columns in applied.outputs.values() for value in things(columns)}
            inputs = self._differentiated(applied)
            if (applied.call.spec.fused or outputs & reached) and inputs & self.trained:
                reached |= inputs
                found.append(index)
        return found[::-1]

    def _differentiated(self, applied: Application) -> set[int]:
        return {value for name in gradient_takers(applied.call) for value in things(applied.inputs[name])}

    def _check_outputs(self) -> None:
        """What has no gradient (a mean, a log-sum-exp) is not used as if it had one, and no op without a derivative
        stands in between."""
        silent: dict[int, tuple[Call, str]] = {}
        for index in self.indices:
            call = self._calls[index].call
            if call.spec.backward is None and not call.spec.passes:
                takers = sorted(gradient_takers(call) - _added(call))
                if any(set(things(self._calls[index].inputs[name])) & self.trained for name in takers):
                    raise ProgramError(
                        f"no derivative: {call.at} ({call.writes[0].view.name}) stands between trained weights and the "
                        f"loss, and {call.op} has no backward."
                    )
            for name in gradient_takers(call):
                for value in things(self._calls[index].inputs[name]):
                    if value in silent:
                        maker, output = silent[value]
                        raise ProgramError(
                            f"no derivative: {call[name].name}, which {call.at} reads as {name}, is {output} of "
                            f"{maker.at}, through which no gradient comes back."
                        )
            for argument in call.writes:
                if not call.spec.fused and not call.spec.passes_back(argument.name) and argument.mode != "add":
                    for value in things(self._calls[index].outputs[argument.name]):
                        silent[value] = (call, argument.name)

    def _check_used(self, numbered: Numbered) -> None:
        """Whatever is computed from trained weights on the way forward is there for the loss."""
        for index in sorted(set(numbered.applications()) - set(self.indices), reverse=True):
            call = self._calls[index].call
            if self.trained & self._differentiated(self._calls[index]):
                y = call.writes[0].view
                later = ((each.call, a) for each in self._calls[index + 1 :] for a in each.call.arguments)
                after = next(((c, a) for c, a in later if a.view.buffer == y.buffer), None)
                if after and after[1].mode == "write":
                    raise ProgramError(
                        f"{y.name} is overwritten by {after[0].at} before anything has read what {call.at} put there."
                    )
                raise ProgramError(f"no loss depends on {y.name}, which {call.at} computes from trained weights.")

    def _pass_back(self, index: int) -> None:
        applied = self._calls[index]
        spec = applied.call.spec
        for name in gradient_takers(applied.call):
            passed = spec.passes.get(name, name if name in _added(applied.call) else None)
            columns = applied.inputs[name]
            back = all_of((index, name), width_of(columns)) if passed is None else self.adjoint(applied.outputs[passed])
            at = 0
            for width, held in columns:
                for value, first in held or ():
                    before = self.adjoints[value]
                    here = added(cut(before, first, first + width), cut(back, at, at + width))
                    assert here is not None, "adjoints start empty"
                    self.adjoints[value] = put(before, first, first + width, here)
                at += width

    def adjoint(self, columns: Columns) -> Columns:
        """Of a value, or of several side by side."""
        found: Columns = ()
        for width, held in columns:
            for value, first in held or ():
                found += cut(self.adjoints[value], first, first + width)
        return put(found, 0, 0, ())

    def wanted(self, index: int) -> list[str]:
        """The arguments whose gradient a backward call must make: they depend on a trained weight."""
        applied = self._calls[index]
        names = sorted(gradient_takers(applied.call) - passing(applied.call))
        return [name for name in names if self.trained.intersection(things(applied.inputs[name]))]

    def due(self) -> list[int]:
        """The applications that must have a backward call."""
        return [i for i in self.indices if self._calls[i].call.direction == "forward" and self.wanted(i)]


def gradient_takers(call: Call) -> frozenset[str]:
    """The arguments of an application that a gradient comes back to, whether through a backward or as it is."""
    given = {argument.name for argument in call.arguments}
    return (call.spec.differentiable | frozenset(call.spec.passes) | _added(call)) & given


def passing(call: Call) -> frozenset[str]:
    return frozenset(call.spec.passes) | _added(call)


def _added(call: Call) -> frozenset[str]:
    """What a forward adds to goes on in the sum, so its gradient is the sum's."""
    return frozenset(a.name for a in call.arguments if a.mode == "add" and call.direction == "forward")


def _fits(forward: Application, backward: Application) -> bool:
    """The same op, and all that both have is in the same buffers, or is the same values wherever they are."""
    if forward.call.op != backward.call.op:
        return False
    mine = {argument.name: argument.view for argument in forward.call.arguments}
    return all(mine.get(a.name, a.view) == a.view for a in backward.call.reads) or all(
        forward.held(name) in (None, value) for name, value in backward.inputs.items()
    )


def _check_partners_exist(numbered: Numbered, active: Active) -> None:
    backwards = [each for each in numbered.calls if each.call.direction == "backward" and not each.call.spec.fused]
    due = active.due()
    mirrored = zip(reversed(due), backwards, strict=False)
    if len(due) == len(backwards) and all(_fits(numbered.calls[index], each) for index, each in mirrored):
        return
    for index in due:  # something is wrong: what?
        if not any(_fits(numbered.calls[index], each) for each in backwards):
            call = numbered.calls[index].call
            raise ProgramError(
                f"no backward: {call.at} writes {call.writes[0].view.name}, "
                f"but no backward call takes the same buffers."
            )


class Walk:
    """From the first call to the last, with what each buffer holds the gradient of."""

    def __init__(self, program: Program, numbered: Numbered, active: Active) -> None:
        self._program, self._calls, self._active, self._initial = program, numbered.calls, active, numbered.initial
        self._due = active.due()
        self._gradients = BufferColumns(program.buffers)
        self._writers: dict[str, Call] = {}
        self._lost: dict[str, tuple[Call, Counter[Atom]]] = {}  # what the last writing call wrote over

    def check(self) -> dict[int, int]:
        partners: dict[int, int] = {}
        for index, applied in enumerate(self._calls):
            call = applied.call
            partner = index if call.direction == "backward" else None
            if partner is not None and call.spec.fused:
                _check_shapes(call, call)
                self._check_complete(applied, partner)
            if call.direction == "backward" and not call.spec.fused:
                partner = partners[index] = self._partner(applied)
                self._check_partner(applied, self._calls[partner])
                self._check_complete(applied, partner)
            if call.direction == "forward" and not is_application(call):
                self._check_gradients_read(call)
            for argument in call.writes:
                self._write(call, argument, partner)
                for part in argument.view.parts:
                    self._writers[part.buffer.name] = call
        if self._due:
            call = self._program.calls[self._due[0]]
            raise ProgramError(
                f"no backward: {call.at} writes {call.writes[0].view.name}, "
                f"but the only backward call on the same buffers belongs to another forward."
            )
        self._check_weights(None)
        return partners

    def _partner(self, applied: Application) -> int:
        """The backward of what was applied last: the exact reverse."""
        if self._due and _fits(self._calls[self._due[-1]], applied):
            return self._due.pop()
        call = applied.call
        if any(_fits(self._calls[index], applied) for index in self._due):
            due = self._program.calls[self._due[-1]]
            raise ProgramError(
                f"out of order: {call.at} ({call.writes[0].view.name}) stands where the backward of "
                f"{due.at} ({due.writes[0].view.name}) is due."
            )
        indices = self._active.due()
        idle = (each for index, each in enumerate(self._calls) if is_application(each.call) and index not in indices)
        if any(_fits(each, applied) for each in idle):
            raise ProgramError(
                f"unneeded: {call.at} writes {call.writes[0].view.name}, the gradient of what depends on no trained "
                f"weight: leave the call out."
            )
        raise ProgramError(
            f"no forward: {call.at} writes {call.writes[0].view.name}, but no forward call has the same buffers."
        )

    def _check_partner(self, applied: Application, forward: Application) -> None:
        call = applied.call
        _check_shapes(call, forward.call)
        for name, value in applied.inputs.items():
            if forward.held(name) not in (None, value):
                culprit = self._writers[call[name].parts[0].buffer.name]
                raise ProgramError(
                    f"{call[name].name} is overwritten by {culprit.at} while {call.at} still needs what "
                    f"{forward.call.at} had there."
                )
        self._check_same_optional(call, forward.call)
        scalars = dict(forward.call.scalars)
        for name, scalar in call.scalars:
            if scalars.get(name, scalar) != scalar:
                raise ProgramError(
                    f"wrong {name}: it is {scalar!r} in {call.at} ({call.writes[0].view.name}), "
                    f"and {scalars[name]!r} in {forward.call.at}, whose backward it is."
                )
        for argument in call.reads:
            if argument.name[1:] in forward.outputs and argument.name not in forward.outputs:
                wanted = self._active.adjoint(forward.outputs[argument.name[1:]])
                self._check_holds(argument.view, wanted, f"{argument.name} of {call.at}", call)

    def _check_same_optional(self, call: Call, forward: Call) -> None:
        """What a forward may be given or not (where documents begin) its backward is given just so."""
        for name in set(forward.signature.optional).intersection(call.signature.reads):
            views = [view for each in (call, forward) for view in (a.view for a in each.reads if a.name == name)]
            if len(views) == 1:
                without, given = (call, forward) if forward.has(name) else (forward, call)
                raise ProgramError(
                    f"wrong {name}: {given.at} reads {views[0].name}, and {without.at} ({without.writes[0].view.name}) "
                    f"is given none: forward and backward must be given the same."
                )

    def _check_complete(self, applied: Application, partner: int) -> None:
        """A gradient is left out where nothing below is trained, and only there."""
        call, forward, wanted = applied.call, self._calls[partner], self._active.wanted(partner)
        written = {argument.name for argument in call.writes}
        for argument in call.writes:
            of = argument.name[1:]
            if argument.name in call.signature.optional and of in gradient_takers(forward.call) and of not in wanted:
                raise ProgramError(
                    f"unneeded: {call.at} computes {argument.view.name}, the gradient of {forward.call[of].name}, "
                    f"which depends on no trained weight: leave it out."
                )
        for name in wanted:
            if f"d{name}" not in written:
                view = forward.call[name]
                raise ProgramError(
                    f"no gradient: {call.at} leaves out {gradient_name(view.buffer.name)}, "
                    f"the gradient of {view.name}, which {forward.call.at} reads."
                )

    def _check_gradients_read(self, call: Call) -> None:
        """Whoever reads the gradients of weights (the norm, the update) finds them complete."""
        for argument in call.reads:
            if argument.view.buffer.kind == "gradient":
                self._check_weights(call)

    def _check_weights(self, reader: Call | None) -> None:
        names = {buffer.name: buffer for buffer in self._program.buffers}
        for weight in self._program.trained:
            gradient = names.get(gradient_name(weight.name))
            wanted = self._active.adjoint(self._initial[weight.name])
            unused = sum(width for width, held in wanted if not held)
            if unused or gradient is None:
                part = "" if unused == weight.shape[-1] else f" in {unused} of {weight.shape[-1]} columns"
                raise ProgramError(
                    f"no gradient: {gradient_name(weight.name)}{part} has none, "
                    f"as {weight.name}{_reader(self._program, weight)}."
                )
            where = f"what {reader.at} reads" if reader else "the end"
            self._check_holds(gradient.all, wanted, where, reader)

    def _check_holds(self, view: View, wanted: Columns, where: str, call: Call | None) -> None:
        held = put(self._gradients[view], 0, 0, ())
        if held == wanted:
            return
        have, want = Counter(things(held)), Counter(things(wanted))
        missing, extra = want - have, have - want
        lost_by = self._lost.get(view.parts[0].buffer.name)
        if missing and lost_by and missing.keys() & lost_by[1].keys():
            raise ProgramError(
                f"{view.name} is overwritten by {lost_by[0].at}, after {self._maker(missing, lost_by[1])} has produced "
                f"its part: it must be added to."
            )
        if missing:
            fault = f"lacks {self._told(missing)}"
        elif extra:
            fault = f"also holds {self._told(extra)}"
        else:
            maker = self._writers[view.parts[0].buffer.name]
            raise ProgramError(
                f"wrong gradient: {maker.at} puts parts of {view.name} into other columns than {where} has."
            )
        raise ProgramError(f"wrong gradient: {view.name}, as {where}, {fault}.")

    def _told(self, atoms: Counter[Atom]) -> str:
        index, name = min(atoms)
        call = self._program.calls[index]
        return f"what comes back through {name} ({call[name].name}) of {call.at}"

    def _maker(self, missing: Counter[Atom], lost: Counter[Atom]) -> str:
        index, _ = min(missing.keys() & lost.keys())
        return f"the backward of {self._program.calls[index].at}"

    def _write(self, call: Call, argument: Argument, partner: int | None) -> None:
        view, name = argument.view, argument.name
        width = sum(part.stop - part.start for part in view.parts)
        if argument.mode != "add":
            for part in view.parts:
                self._lost[part.buffer.name] = (call, Counter(things(self._gradients[part])))
        if partner is None or name[1:] not in gradient_takers(self._calls[partner].call):
            self._gradients[view] = empty(width) if call.op == "zero" else nothing(width)
            return
        atom = (partner, name[1:])
        self._check_own(call, argument, self._calls[partner])
        if argument.mode == "write":
            self._gradients[view] = all_of(atom, width)
            return
        together = added(self._gradients[view], all_of(atom, width))
        if together is None:
            raise ProgramError(
                f"wrong gradient: {view.name} holds no gradient when {call.at} adds {name} to it, "
                f"so the sum is the gradient of nothing."
            )
        self._gradients[view] = together

    def _check_own(self, call: Call, argument: Argument, forward: Application) -> None:
        """The gradient of a weight goes to that weight's own buffer, and nothing else does."""
        weight, view = forward.call[argument.name[1:]], argument.view
        own = weight.buffer.kind == "weight" and gradient_name(weight.buffer.name) == view.buffer.name
        concerned = weight.buffer.kind == "weight" or view.buffer.kind == "gradient"
        if concerned and not (own and (view.start, view.stop) == (weight.start, weight.stop)):
            raise ProgramError(
                f"wrong gradient: {argument.name} of {call.at} goes to {view.name}, "
                f"but {argument.name[1:]} is {weight.name}."
            )


def _check_shapes(backward: Call, forward: Call) -> None:
    """A gradient has the shape of what it is the gradient of. Kernels that fold leading axes would take another, and
    those that do not would read it by other rows."""
    wanted = {argument.name: argument.view.shape for argument in forward.arguments}
    for argument in backward.arguments:
        shape = wanted.get(argument.name[1:], wanted.get(argument.name, argument.view.shape))
        if argument.view.shape != shape:
            found, due = ("×".join(map(str, each)) for each in (argument.view.shape, shape))
            raise ProgramError(
                f"wrong shape: {argument.view.name} is {found}, but {argument.name} of {backward.at} must be {due}, "
                f"as in {forward.at}."
            )


def _reader(program: Program, weight: object) -> str:
    readers = [c for c in program.calls if any(a.view.buffer == weight for a in c.arguments)]
    return f", which {readers[0].at} reads, reaches no loss" if readers else " is read by no call"
