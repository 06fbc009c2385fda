"""Where models write their calls: `p.linear.forward(y=write(s.h), x=s.x, weight=w.weight, bias=w.bias)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from tapeless.errors import ProgramError, unknown
from tapeless.ops import OPS
from tapeless.ops.contract import ROLES, Shape
from tapeless.program.adjoints import gradient_takers
from tapeless.program.call import (
    PHASES,
    ROLE_OF,
    Argument,
    Buffer,
    Call,
    Initial,
    Output,
    Program,
    View,
    Weight,
    as_view,
    gradient_name,
    member_offsets,
)
from tapeless.program.verify import check_call, verify

HOME = Path(__file__).parents[2]  # the folder that holds the package


class Builder:
    """Collects buffers and calls, checks each call as it is made, and freezes the list."""

    def __init__(self, trained: Callable[[Weight], bool] = lambda weight: True, *, lean: bool = False) -> None:
        """`trained`: whether a weight is; else it is frozen. `lean`: gradients may lie where activations were."""
        self._buffers: dict[str, Buffer] = {}
        self._calls: list[Call] = []
        self._phase = PHASES[1]
        self._section = ""
        self._trained, self._lean = trained, lean
        self._active: dict[str, set[tuple[int, int]]] = {}  # the columns of buffers that depend on a trained weight

    def buffer(self, kind: str, name: str, shape: Shape, role: str | None = None, *, meaning: str = "") -> Buffer:
        role = role or ROLE_OF.get(kind, "activation")
        if role not in ROLES:
            raise unknown("role", role, ROLES)
        return self._declare(Buffer(name, kind, shape, role, meaning=meaning))

    def shared_workspace(self, name: str, *shape: int) -> Buffer:
        """Declared the first time it is asked for."""
        return self._buffers.get(name) or self.workspace(name, *shape)

    def workspace(self, name: str, *shape: int, role: str = "activation", meaning: str = "") -> Buffer:
        return self.buffer("workspace", name, shape, role, meaning=meaning)

    def weight(
        self,
        name: str,
        *shape: int,
        initial: Initial | None = None,
        meaning: str = "",
        matrices: tuple[int, ...] = (),
        adapter: bool = False,
    ) -> Weight:
        about: dict[str, Any] = {"initial": initial, "meaning": meaning, "section": self._section}
        weight = Weight(name, "weight", shape, "weight", matrices=matrices, adapter=adapter, **about)
        if not self._trained(weight):
            matrix = len(shape) > 1 and not adapter  # vectors are few numbers; what adapts may be trained again
            weight = replace(weight, kind="frozen", role="frozen" if matrix else "weight")
        self._declare(weight)
        return weight

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(buffer for buffer in self._buffers.values() if isinstance(buffer, Weight))

    def gradient(self, weight: Buffer) -> Buffer | None:
        """The gradient of a weight, declared the first time it is asked for; None where the weight is frozen."""
        if weight.kind == "frozen":
            return None
        name = gradient_name(weight.name)
        return self._buffers.get(name) or self.buffer("gradient", name, weight.shape)

    def region(self, kind: str, name: str) -> Buffer:
        """All buffers of a kind as one vector. Declare the buffers first."""
        members = tuple(buffer for buffer in self._buffers.values() if buffer.kind == kind)
        return self._declare(Buffer(name, kind, (member_offsets(members)[1],), ROLE_OF[kind], members))

    def active(self, target: Buffer | View) -> bool:
        """Whether it depends on a trained weight. Only then does a gradient go back to it."""
        view = as_view(target)
        spans = self._active.get(view.buffer.name, ())
        return view.buffer.kind == "weight" or any(start < view.stop and view.start < stop for start, stop in spans)

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

    def call(self, op: str, direction: str, values: dict[str, Any], stack: tuple[str, ...]) -> None:
        spec, source = OPS[op].SPEC, Path(stack[0]).name
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
        call = Call(op, direction, tuple(arguments), scalars, self._phase, self._section, source, stack)
        check_call(call)
        self._calls.append(call)
        if direction == "forward" and any(self.active(call[name]) for name in gradient_takers(call)):
            for view in (argument.view for argument in call.writes):
                self._active.setdefault(view.buffer.name, set()).add((view.start, view.stop))

    def verified(self) -> Program:
        """The list, proven sound, with what the proof found out."""
        program = self.build()
        return replace(program, partners=verify(program))

    def build(self) -> Program:
        """Buffers that no call uses are dropped (an evaluation has no gradients), but not weights."""
        used = {part for call in self._calls for a in call.arguments for part in (a.view.buffer, *a.view.buffer.parts)}
        kept = (buffer for buffer in self._buffers.values() if isinstance(buffer, Weight) or buffer in used)
        return Program(tuple(self._calls), tuple(kept), lean=self._lean)


class _OpCaller:
    def __init__(self, builder: Builder, op: str) -> None:
        self._builder, self._op = builder, op

    def forward(self, **values: Any) -> None:
        self._builder.call(self._op, "forward", values, _stack())

    def backward(self, **values: Any) -> None:
        self._builder.call(self._op, "backward", values, _stack())


def _stack() -> tuple[str, ...]:
    """The line of the model that made the call, two frames up, and those that led there, as far as they are in the same
    package: what stands above has asked for the program and does not describe it."""
    frame: FrameType | None = sys._getframe(2)
    lines: list[str] = []
    package = _package(sys._getframe(2).f_globals.get("__name__", ""))
    while frame is not None and _package(frame.f_globals.get("__name__", "")) == package:
        lines.append(f"{_path(frame.f_code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines)


@cache
def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


@cache
def _path(file: str) -> str:
    """Ours from `tapeless/` on, wherever it is installed; somebody else's as it is."""
    path = Path(file)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else str(path)
