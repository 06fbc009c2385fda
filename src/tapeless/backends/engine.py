"""Programs on memory: an arena holds what a plan has placed, an engine has the program's calls bound to it besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tapeless.backends.backend import Backend, bind_call
from tapeless.errors import ProgramError
from tapeless.kernels.native import Native
from tapeless.ops.contract import Array
from tapeless.program.arena import LENT, Placement, Plan, gaps
from tapeless.program.call import Argument, Buffer, Call, Program, View, member_offsets

Target = str | Buffer | View


class Arena:
    """A plan's memory on one backend. Nothing in it is ever copied or moved."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        memory: Any = None,
        lender: Arena | None = None,
        full: Arena | None = None,
    ) -> None:
        self.plan, self.program, self.backend = plan, plan.program, backend
        # Arenas whose programs never run at the same time may have their memory in common.
        self.memory = backend.allocate(plan.peak_bytes) if memory is None else memory
        self._lender = lender  # whose weights and constants this arena uses instead of its own
        self._full = full or lender or self  # that holds the master copies, if there are any
        self.masters = _masters(plan.program)

    def view(self, target: Target) -> Any:
        """A buffer, by itself or by name, or some of its columns, as the backend's kernels see them."""
        if isinstance(target, View):
            return self.view(target.buffer)[..., target.start : target.stop]
        if isinstance(target, Buffer):
            if self._lender is not None and target.kind in LENT:
                return self._lender.view(target.name)
            target = target.name
        return self.backend.view(self.memory, self.plan.placements[target])

    def read(self, target: Target) -> Array:
        """The values, as the backend's `read` gives them."""
        return self.backend.read(self.view(target))

    def write(self, target: Target, values: Any) -> None:
        self.backend.write(self.view(target), values)

    def arguments(self, call: Call) -> dict[str, Any]:
        """The views of a call by argument name, in the shapes its kernel sees."""
        found = {}
        for argument in call.arguments:
            view = self._argument(call, argument)
            shape = call.spec.kernel_shape(argument.name, view.shape)
            if shape[-1] != view.shape[-1] and not argument.view.whole:  # folding what is cut would copy it
                raise ProgramError(f"{argument.name} of {call.at} takes {argument.view.buffer.name} whole.")
            found[argument.name] = view.reshape(shape)
        return found

    def _argument(self, call: Call, argument: Argument) -> Any:
        """What is multiplied is the working weight; what is read one by one, its master copy."""
        weight, full = argument.view.buffer, self._full
        if argument.name in call.spec.full and argument.view.whole and weight.name in full.masters:
            return full.view(full.masters[weight.name]).reshape(weight.shape)
        return self.view(argument.view)

    def poison(self) -> None:
        """NaN wherever a program must write before it reads: gradients, outputs and the whole workspace.

        All bits set is NaN in every float type and −1 in integers.
        """
        for placement in self.plan.placements.values():
            if placement.kind in ("gradient", "output"):
                self.memory[placement.offset : placement.offset + placement.bytes] = 0xFF
        self.memory[self.plan.workspace_offset :] = 0xFF
        for gap in gaps(self.plan.placements):
            self.memory[gap.offset : gap.offset + gap.bytes] = 0


class Engine(Arena):
    """A program, its plan, an arena and the bound calls on one backend."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        memory: Any = None,
        lender: Arena | None = None,
        full: Arena | None = None,
    ) -> None:
        super().__init__(plan, backend, memory=memory, lender=lender, full=full)
        self._begin = backend.begin()
        self.bound: list[tuple[Call, list[Native]]] = backend.bind_all(
            lambda: [(call, self._bound(number, call)) for number, call in enumerate(self.program.calls)]
        )
        # Where lists run as they are, groups are bound now, too: a model keeps threads and products it is made with.
        self._together: dict[int, list[Native]] = {}
        if not backend.rewrites:
            for (first, last), scratch in plan.together.items():
                self._together[first] = self._bound_together(self.program.calls[first : last + 1], scratch)
        self._captured: dict[tuple[tuple[str, ...], frozenset[str]], list[Native]] = {}
        self.silent: frozenset[str] = frozenset()  # inputs that say nothing this time: all documents begin at 0, say

    def _bound(self, number: int, call: Call) -> list[Native]:
        scratch = [self.backend.view(self.memory, each) for each in self.plan.scratch[number]]
        return bind_call(call, self.arguments(call), self.backend, scratch)

    def _bound_together(self, calls: Sequence[Call], scratch: Sequence[Placement]) -> list[Native]:
        given = [self.backend.view(self.memory, each) for each in scratch]
        return self.backend.bind_together(calls, [self.arguments(call) for call in calls], given)

    def run(self, *phases: str) -> None:
        """All calls of these phases, or of the whole program, with nothing between them: here those that the backend
        binds as one are one, and where it rewrites lists, what is zeroed first is written and not added to, and inputs
        that say nothing are not read."""
        silent = self.silent if self.backend.rewrites else frozenset()
        for native in self._captured.get((phases, silent)) or self._capture(phases, silent):
            native()

    def _capture(self, phases: tuple[str, ...], silent: frozenset[str]) -> list[Native]:
        natives: list[Native] = []
        listed: Sequence[Call | None] = self.program.calls
        if self.backend.rewrites:
            chosen = [number for number, call in enumerate(self.program.calls) if _is_in(call, phases)]
            listed = [call and _without(call, silent) for call in written_first(self.program.calls, chosen)]
        groups = {first: (last, scratch) for (first, last), scratch in self.plan.together.items()}
        number = 0
        while number < len(self.bound):
            last, scratch = groups.get(number, (number, ()))
            calls = [call for call in listed[number : last + 1] if call and _is_in(call, phases)]
            if last > number and len(calls) > last - number:
                ready = self._together.get(number)
                natives += self._bound_together(calls, scratch) if ready is None else ready
                number = last + 1
                continue
            call, (own, bound) = listed[number], self.bound[number]
            if call and _is_in(call, phases):
                natives += bound if call is own else self._bound(number, call)
            number += 1
        captured = self._captured[phases, silent] = [*self._begin, *self.backend.capture(natives)]
        return captured

    def walk(self, *phases: str) -> Iterator[Call]:
        """The same calls one by one; each is yielded right after it ran, its values readable in the arena."""
        for native in self._begin:
            native()
        for call, bound in self.bound:
            if _is_in(call, phases):
                for native in bound:
                    native()
                yield call


def written_first(calls: Sequence[Call], chosen: Sequence[int]) -> list[Call | None]:
    """The list as it may run where these of its calls do: what adds first to a gradient that they zero writes it
    instead. Where that is so of all gradients, zeroing them is left out (None)."""
    found: list[Call | None] = list(calls)
    waiting: set[str] = set()
    zeroing: int | None = None
    for number in chosen:
        call = calls[number]
        if call.op == "zero":
            region = call["y"].buffer
            # Between members that do not fill their places lies what only zeroing reaches.
            filled = sum(member.elements for member in region.members) == region.elements
            zeroing, waiting = number if filled else None, {member.name for member in region.members}
            continue
        arguments = []
        for argument in call.arguments:
            name = argument.view.buffer.name
            if name in waiting:
                waiting.remove(name)
                if argument.mode == "add" and argument.view.whole:
                    argument = replace(argument, mode="write")
                else:
                    zeroing = None
            arguments.append(argument)
        if tuple(arguments) != call.arguments:
            found[number] = replace(call, arguments=tuple(arguments))
    if zeroing is not None and not waiting:
        found[zeroing] = None
    return found


def _without(call: Call, silent: frozenset[str]) -> Call:
    """The call without what it may do without of these inputs."""
    optional = call.signature.optional
    kept = [each for each in call.arguments if each.name not in optional or each.view.buffer.name not in silent]
    return call if len(kept) == len(call.arguments) else replace(call, arguments=tuple(kept))


def _is_in(call: Call, phases: tuple[str, ...]) -> bool:
    return not phases or call.phase in phases


def _masters(program: Program) -> dict[str, View]:
    """Of each weight, its part of the master copy; nothing where there is none."""
    found = [buffer for buffer in program.buffers if buffer.kind == "master"]
    regions = [buffer for buffer in program.buffers if buffer.kind == "weight" and buffer.members]
    return {
        weight.name: master.columns(start, start + weight.elements)
        for master, region in zip(found, regions, strict=False)
        for weight, start in zip(region.members, member_offsets(region.members)[0], strict=True)
    }
