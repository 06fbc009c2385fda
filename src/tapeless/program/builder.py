"""Where models write their calls: `p.linear.forward(y=write(s.h), x=s.x, weight=w.weight, bias=w.bias)`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tapeless.errors import ProgramError, unknown
from tapeless.ops import OPS
from tapeless.ops.contract import ROLES, Shape
from tapeless.program.call import (
    PHASES,
    ROLE_OF,
    Argument,
    Buffer,
    Call,
    Output,
    Program,
    View,
    as_view,
    gradient_name,
    member_offsets,
)
from tapeless.program.verify import check_call


class Builder:
    """Collects buffers and calls, checks each call as it is made, and freezes the list."""

    def __init__(self) -> None:
        self._buffers: dict[str, Buffer] = {}
        self._calls: list[Call] = []
        self._phase = PHASES[1]
        self._section = ""
        self.decayed: list[Buffer] = []  # the weights that weight decay applies to

    def buffer(self, kind: str, name: str, shape: Shape, role: str | None = None) -> Buffer:
        role = role or ROLE_OF.get(kind, "activation")
        if role not in ROLES:
            raise unknown("role", role, ROLES)
        return self._declare(Buffer(name, kind, shape, role))

    def workspace(self, name: str, *shape: int, role: str = "activation") -> Buffer:
        return self.buffer("workspace", name, shape, role)

    def weight(self, name: str, *shape: int, decay: bool = False) -> Buffer:
        weight = self.buffer("weight", name, shape)
        if decay:
            self.decayed.append(weight)
        return weight

    def gradient(self, weight: Buffer) -> Buffer:
        """The gradient of a weight, declared the first time it is asked for."""
        name = gradient_name(weight.name)
        return self._buffers.get(name) or self.buffer("gradient", name, weight.shape)

    def region(self, kind: str, name: str) -> Buffer:
        """All buffers of a kind as one vector. Declare the buffers first."""
        members = tuple(buffer for buffer in self._buffers.values() if buffer.kind == kind)
        return self._declare(Buffer(name, kind, (member_offsets(members)[1],), ROLE_OF[kind], members))

    def _declare(self, buffer: Buffer) -> Buffer:
        if buffer.name in self._buffers:
            raise ProgramError(f"buffer {buffer.name} is declared twice; give the second another name.")
        self._buffers[buffer.name] = buffer
        return buffer

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        if phase not in PHASES:
            raise unknown("phase", phase, PHASES)
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def section(self, section: str) -> Iterator[None]:
        before, self._section = self._section, section
        try:
            yield
        finally:
            self._section = before

    def __getattr__(self, op: str) -> _OpCaller:
        return self.op(op)

    def op(self, name: str) -> _OpCaller:
        if name not in OPS:
            raise unknown("op", name, OPS)
        return _OpCaller(self, name)

    def call(self, op: str, direction: str, values: dict[str, Any], source: str) -> None:
        spec = OPS[op].SPEC
        where = f"{op}.{direction} at {source}"
        if direction == "backward" and spec.backward is None:
            raise ProgramError(f"{where}: {op} has no backward.")
        signature = spec.signature(direction)
        known = (*signature.arguments, *signature.scalars)
        for name in values:
            if name not in known:
                raise ProgramError(f"{where}: there is no argument {name!r}; it takes {', '.join(known)}.")
        arguments = []
        for name in signature.arguments:
            value = values.get(name)
            if value is None:
                if name in signature.optional:
                    continue
                raise ProgramError(f"{where}: argument {name!r} is missing.")
            if name in signature.writes:
                if not isinstance(value, Output):
                    raise ProgramError(f"{where}: {name} is an output; say write(…), add(…) or update(…).")
                arguments.append(Argument(name, value.view, value.mode))
            elif isinstance(value, Buffer | View):
                arguments.append(Argument(name, as_view(value), "read"))
            else:
                raise ProgramError(f"{where}: {name} is read, so it must be a buffer, not {value!r}.")
        missing = [name for name in signature.scalars if name not in values]
        if missing:
            raise ProgramError(f"{where}: scalar {missing[0]!r} is missing.")
        scalars = tuple((name, values[name]) for name in signature.scalars)
        call = Call(op, direction, tuple(arguments), scalars, self._phase, self._section, source)
        check_call(call)
        self._calls.append(call)

    def build(self) -> Program:
        """Freeze the list. Buffers that no call uses are dropped (an evaluation has no gradients), but not weights."""
        used = {part for call in self._calls for a in call.arguments for part in (a.view.buffer, *a.view.buffer.parts)}
        kept = (buffer for buffer in self._buffers.values() if buffer.kind == "weight" or buffer in used)
        return Program(tuple(self._calls), tuple(kept))


class _OpCaller:
    def __init__(self, builder: Builder, op: str) -> None:
        self._builder, self._op = builder, op

    def forward(self, **values: Any) -> None:
        self._builder.call(self._op, "forward", values, _source())

    def backward(self, **values: Any) -> None:
        self._builder.call(self._op, "backward", values, _source())


def _source() -> str:
    """The line of the model that made the call: two frames up."""
    frame = sys._getframe(2)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
