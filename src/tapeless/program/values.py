"""Value numbering: which value each buffer holds when a call runs.

An application is an op applied once: a forward call, or the backward of an op that has no forward call. What it
computes has a number of its own for each output. A recomputation repeats an application and restores its numbers;
whatever else overwrites a value makes another one of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tapeless.errors import ProgramError
from tapeless.program.call import PREPARED, Buffer, Call, Program, View
from tapeless.program.columns import Columns, Stretch, all_of, cut, nothing, put, split


@dataclass(frozen=True)
class Application:
    """`inputs` and `outputs`: what each argument held, before and after; an output that is added to is both."""

    call: Call
    inputs: dict[str, Columns]
    outputs: dict[str, Columns]

    def held(self, name: str) -> Columns | None:
        """What the backward must find there: what was read, or else what was written."""
        return self.inputs.get(name, self.outputs.get(name))


class BufferColumns:
    """The columns of every buffer that is no region; a view of a region is all the members that it covers."""

    def __init__(self, buffers: tuple[Buffer, ...]) -> None:
        self._held = {buffer.name: nothing(buffer.shape[-1]) for buffer in buffers if not buffer.members}

    def __getitem__(self, view: View) -> Columns:
        parts = (cut(self._held[part.buffer.name], part.start, part.stop) for part in view.parts)
        return tuple(stretch for part in parts for stretch in part)

    def __setitem__(self, view: View, columns: Columns) -> None:
        rest = columns
        for part in view.parts:
            width = part.stop - part.start
            before = self._held[part.buffer.name]
            mine, rest = split(rest, width)
            self._held[part.buffer.name] = put(before, part.start, part.stop, mine)

    def missing(self, view: View) -> str | None:
        """The name of what holds nothing."""
        for part in view.parts:
            if any(held is None for _, held in cut(self._held[part.buffer.name], part.start, part.stop)):
                return part.buffer.name
        return None


@dataclass(frozen=True)
class Numbered:
    """`calls`: for each call what its arguments held. `initial`: what weights held before the first; `final`: what
    everything held after the last."""

    calls: tuple[Application, ...]
    initial: dict[str, Columns]
    final: BufferColumns
    widths: dict[int, int]  # how many columns a value has
    repeated: dict[int, int]  # by index, the forward call that a recomputation repeats

    def applications(self) -> list[int]:
        """Of the training step, by index: forward calls, and the losses."""
        return [index for index, each in enumerate(self.calls) if is_application(each.call)]


def is_application(call: Call) -> bool:
    return call.phase == "forward" if call.direction == "forward" else call.spec.fused


def number(program: Program) -> Numbered:
    memory = BufferColumns(program.buffers)
    widths: dict[int, int] = {}
    known: dict[Any, list[int]] = {}
    repeated: dict[int, int] = {}
    writers: dict[str, Call] = {}
    calls: list[Application] = []

    def fresh(view: View) -> Columns:
        found: list[Stretch] = []
        for part in view.parts:
            widths[len(widths)] = part.stop - part.start
            found += all_of(len(widths) - 1, part.stop - part.start)
        return tuple(found)

    for buffer in program.buffers:
        if buffer.kind in PREPARED and not buffer.members:
            memory[buffer.all] = fresh(buffer.all)
    initial = {weight.name: memory[weight.all] for weight in program.trained}
    for index, call in enumerate(program.calls):
        for argument in call.reads:
            missing = memory.missing(argument.view)
            if missing is not None:
                fault = "added to before it is initialised" if argument.mode == "add" else "read before it is written"
                raise ProgramError(f"{missing} is {fault}, as {argument.name} of {call.at}.")
        inputs = {argument.name: memory[argument.view] for argument in call.reads}
        shapes = tuple((argument.name, argument.view.shape) for argument in call.arguments)
        meaning = (call.op, call.direction, call.scalars, shapes, tuple(inputs.items()))
        if call.phase == "recompute":
            repeated[index] = _original(call, inputs, known.get(meaning, []), calls, writers)
            outputs = calls[repeated[index]].outputs
        else:
            outputs = {argument.name: fresh(argument.view) for argument in call.writes}
        if is_application(call):
            known.setdefault(meaning, []).append(index)
        calls.append(Application(call, inputs, outputs))
        for argument in call.writes:
            memory[argument.view] = outputs[argument.name]
            for part in argument.view.parts:
                writers[part.buffer.name] = call
    return Numbered(tuple(calls), initial, memory, widths, repeated)


def _original(
    call: Call,
    inputs: dict[str, Columns],
    same: list[int],
    before: list[Application],
    writers: dict[str, Call],
) -> int:
    """What a recomputation repeats: of several that are the same, the one in the same buffers."""
    if same:
        return next((index for index in same if before[index].call.arguments == call.arguments), same[-1])
    for each in before:
        if is_application(each.call) and each.call.op == call.op and each.call.arguments == call.arguments:
            for name, value in each.inputs.items():
                if inputs[name] != value:
                    view = call[name]
                    raise ProgramError(
                        f"{view.name} is overwritten by {writers[view.parts[0].buffer.name].at} before {call.at} "
                        f"computes {call.writes[0].view.name} from it again."
                    )
    raise ProgramError(
        f"not computed before: {call.at} stands where a value is computed again, but no forward call has computed "
        f"{call.writes[0].view.name} from the same values in the same way."
    )
