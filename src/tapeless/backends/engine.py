"""Programs on memory: an arena holds what a plan has placed, an engine has the program's calls bound to it besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from tapeless.backends.backend import Backend, bind_parts, choosing, chosen_here
from tapeless.errors import ProgramError
from tapeless.kernels.native import Native
from tapeless.lowering import lowered_for
from tapeless.ops.contract import Array
from tapeless.program.arena import LENT, Plan, Range, gaps, verify_fits
from tapeless.program.call import Argument, Buffer, Call, Program, View, member_offsets
from tapeless.program.lowered import LoweredProgram

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
        self.plan, self.program, self.backend = plan, plan.program.original, backend
        # Arenas whose programs never run at the same time may have their memory in common.
        self.memory = backend.allocate(plan.peak_bytes) if memory is None else memory
        self._lender = lender  # whose weights and constants this arena uses instead of its own
        self._full = full or lender or self  # that holds the master copies, if there are any
        self.masters = _masters(self.program)

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
    """A program, its plan, an arena and the bound calls on one backend.

    What runs is the program as it is lowered for the phases that are asked for, and what is walked is just that."""

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
        self.omitted: frozenset[str] = frozenset()  # inputs that are not given this time
        self._chosen = chosen_here(backend)
        self._lists: dict[tuple[tuple[str, ...], frozenset[str]], LoweredProgram] = {}
        self._captured: dict[tuple[tuple[str, ...], frozenset[str]], list[Native]] = {}
        # What it usually runs is bound now.
        usual = [each for phases in self._usual() for each in _numbered(self.lowered(*phases))]
        self._natives: dict[tuple[Range, Call], list[Native]] = backend.bind_all(
            lambda: {each: self._bind(*each) for each in dict.fromkeys(usual)}
        )

    def _usual(self) -> list[tuple[str, ...]]:
        """All phases, and those of a batch whose gradients are added to others'."""
        phases = dict.fromkeys(call.phase for call in self.program.calls)
        adds = "zero" in phases and not self.program.lean
        return [(), tuple(phase for phase in phases if phase != "zero")] if adds else [()]

    def lowered(self, *phases: str) -> LoweredProgram:
        """The list that runs for these phases, or for all, with the inputs that are given."""
        key = phases, self.omitted
        if key not in self._lists:
            self._lists[key] = lowered_for(self.plan.program, phases, self.omitted)
            verify_fits(self.plan, self._lists[key])
        return self._lists[key]

    def _bound(self, span: Range, call: Call) -> list[Native]:
        key = span, call
        if key not in self._natives:
            self._natives[key] = self._bind(span, call)
        return self._natives[key]

    def _bind(self, span: Range, call: Call) -> list[Native]:
        asked = self.plan.scratch.get(span, ())  # a call that is left out has none
        scratch = [self.backend.view(self.memory, each) for each in asked]
        with self.as_made():
            return bind_parts(call, [self.arguments(part) for part in call.parts], self.backend, scratch)

    def as_made(self) -> AbstractContextManager[None]:
        """An engine keeps the threads and the GEMM library it is made with, whatever is bound later."""
        return choosing(self.backend, self._chosen)

    @cached_property
    def bound(self) -> list[tuple[Call, list[Native]]]:
        """Every call of the program with what computes it by itself."""
        parts = self.lowered().parts
        calls = enumerate(self.program.calls)
        return [(call, self._bound((number, number), parts.get(number, call))) for number, call in calls]

    def run(self, *phases: str) -> None:
        """All calls of these phases, or of the whole program, as they are lowered, with nothing between them."""
        for native in self._captured.get((phases, self.omitted)) or self._capture(phases):
            native()

    def _capture(self, phases: tuple[str, ...]) -> list[Native]:
        natives = [native for span, call in _numbered(self.lowered(*phases)) for native in self._bound(span, call)]
        captured = self._captured[phases, self.omitted] = self.backend.capture(natives)
        return captured

    def walk(self, *phases: str) -> Iterator[Call]:
        """What `run` runs, call by call: each call of the program is yielded right after it ran, its values readable in
        the arena. Of fused calls every part is yielded, and zeroing where gradients are written first: what these leave
        out is computed besides, for whoever looks; what they leave is what they leave in `run`."""
        for native in self.backend.capture([]):
            native()
        lowered, done = self.lowered(*phases), 0
        for (first, last), call in _numbered(lowered):
            yield from self._left_out(done, first, phases)
            done = last + 1
            if len(call.parts) > 1:
                yield from self._materialised((first, last), call)
                continue
            for native in self._bound((first, last), call):
                native()
            yield self.program.calls[first]
        yield from self._left_out(done, len(self.program.calls), phases)

    def _left_out(self, first: int, end: int, phases: tuple[str, ...]) -> Iterator[Call]:
        """Calls of these phases that the lowered list does without."""
        for number in range(first, end):
            call = self.program.calls[number]
            if not phases or call.phase in phases:
                for native in self._bound((number, number), call):
                    native()
                yield call

    def _materialised(self, span: Range, call: Call) -> Iterator[Call]:
        """A fused call, part by part: it runs and what it leaves is kept, then its parts run one by one from where it
        began. As soon as a part is through, what it leaves is replaced by what the fused call has left there."""
        last = _last_writers(call)
        before = self.held(call)
        for native in self._bound(span, call):
            native()
        left = {each: values for each, values in self.held(call).items() if each not in call.intermediates}
        self.put_back(before)
        for number, part in enumerate(call.parts):
            at = span[0] + number
            for native in self._bound((at, at), part):
                native()
            self.put_back({buffer: values for buffer, values in left.items() if last[buffer] == number})
            yield self.program.calls[at]

    def run_alone(self, call: Call) -> None:
        """One call of the list that runs, as it runs there."""
        span = next(span for span, each in _numbered(self.lowered()) if each is call)
        for native in self._bound(span, call):
            native()

    def held(self, call: Call) -> dict[Buffer, Any]:
        """A copy of what the buffers hold that a call, or a part of it, writes."""
        found = {}
        for buffer in _last_writers(call):
            placed = self.plan.placements[buffer.name]
            found[buffer] = self.backend.allocate(placed.bytes)
            found[buffer][...] = self.memory[placed.offset : placed.offset + placed.bytes]
        return found

    def put_back(self, held: dict[Buffer, Any]) -> None:
        for buffer, values in held.items():
            placed = self.plan.placements[buffer.name]
            self.memory[placed.offset : placed.offset + placed.bytes] = values


def _last_writers(call: Call) -> dict[Buffer, int]:
    """Every buffer that it writes, and by which of its parts last."""
    found: dict[Buffer, int] = {}
    for number, part in enumerate(call.parts):
        found |= {view.buffer: number for argument in part.writes for view in argument.view.parts}
    return found


def _numbered(lowered: LoweredProgram) -> Iterator[tuple[Range, Call]]:
    return zip(lowered.spans, lowered.calls, strict=True)


def _masters(program: Program) -> dict[str, View]:
    """Of each weight, its part of the master copy; nothing where there is none."""
    found = [buffer for buffer in program.buffers if buffer.kind == "master"]
    regions = [buffer for buffer in program.buffers if buffer.kind == "weight" and buffer.members]
    return {
        weight.name: master.columns(start, start + weight.elements)
        for master, region in zip(found, regions, strict=False)
        for weight, start in zip(region.members, member_offsets(region.members)[0], strict=True)
    }
