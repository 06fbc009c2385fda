"""The nouns: buffer, view, call, program. All frozen: no list changes once it is built, lowering makes another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np

from tapeless.errors import ProgramError
from tapeless.ops import OPS
from tapeless.ops.contract import Array, Dims, Scalar, Shape, Signature, Spec
from tapeless.shown import shape

# Laid out once and kept from step to step; everything else is workspace, shared by lifetime.
PERSISTENT = ("weight", "master", "frozen", "gradient", "state", "constant", "input", "output")
# Filled before a program starts: by initialisation, by the caller, or by an earlier step.
PREPARED = ("weight", "master", "frozen", "state", "constant", "input")
PHASES = ("zero", "forward", "recompute", "backward", "clip", "update")

MODES = {"read": "reads", "write": "writes", "add": "adds to", "update": "updates"}

# What a buffer of a kind is, unless it is said: all others are activations.
ROLE_OF = {"weight": "weight", "master": "master", "gradient": "gradient", "state": "state"}

# What weights are that weight decay applies to. Norms, biases and positions are none of them.
DECAYING = ("matrix", "vocabulary")

# Members of a region start at multiples of this many elements: 64 bytes in float32, more in wider types.
MEMBER_ALIGNMENT = 16


@dataclass(frozen=True)
class Buffer:
    """A named, shaped piece of memory; its role decides its type. A region is a buffer made of others, in order."""

    name: str
    kind: str
    shape: Shape
    role: str = "activation"
    members: tuple[Buffer, ...] = ()
    meaning: str = ""  # as a Spec says it: with one, it is taken for nothing else

    def __hash__(self) -> int:
        """By name alone: hashing the members of a region each time would cost more than all else in a deep model."""
        return hash(self.name)

    def __repr__(self) -> str:
        inside = f" of {len(self.members)} members" if self.members else ""
        return f"<{self.kind} {self.name} {shape(self.shape)}{inside}>"

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """What writing or reading this buffer really touches."""
        return self.members or (self,)

    def columns(self, start: int, stop: int) -> View:
        return View(self, start, stop)

    @property
    def all(self) -> View:
        return View(self, 0, self.shape[-1])


class Initial(Protocol):
    """How the first value of a weight is drawn."""

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array: ...


@dataclass(frozen=True)
class Weight(Buffer):
    """A weight says all there is to know of it where it is declared: nobody reads it off its name. The verifier holds
    what it says to the calls that use it, and the update to what it says.

    One of the kind "frozen" is read as any other, but it has no gradient and no state, and nothing writes it.
    """

    initial: Initial | None = None  # None: whoever runs the program fills it
    matrices: tuple[int, ...] = ()  # widths of the hidden layer's matrices side by side in it; an embedding has none
    section: str = ""  # the part of the model it belongs to, as of a call
    adapter: bool = False  # whether it adapts another: without it the model is another one

    @property
    def decay(self) -> bool:
        """Whether weight decay applies to it."""
        return self.meaning in DECAYING

    __hash__, __repr__ = Buffer.__hash__, Buffer.__repr__


@dataclass(frozen=True)
class View:
    """Some columns of a buffer: start ≤ last axis < stop. Mostly all of them."""

    buffer: Buffer
    start: int
    stop: int

    def __repr__(self) -> str:
        return f"<{self.buffer.kind} {self.name} {shape(self.shape)}>"

    @property
    def whole(self) -> bool:
        return (self.start, self.stop) == (0, self.buffer.shape[-1])

    @property
    def shape(self) -> Shape:
        return (*self.buffer.shape[:-1], self.stop - self.start)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def parts(self) -> tuple[View, ...]:
        """What reading or writing it really touches. Of a region, each member that it covers; a span that ends inside a
        member, or in the gap behind it, takes the columns of that member that it covers."""
        if not self.buffer.members:
            return (self,)
        found = []
        for member, first in zip(self.buffer.members, member_offsets(self.buffer.members)[0], strict=True):
            start, stop = max(0, self.start - first), min(member.elements, self.stop - first)
            if start < stop:
                found.append(_span(member, start, stop))
        return tuple(found)

    def meets(self, others: Iterable[View]) -> bool:
        """Whether one of these views of the same buffer has a column of it."""
        return any(other.start < self.stop and self.start < other.stop for other in others)

    @property
    def name(self) -> str:
        return self.buffer.name if self.whole else f"{self.buffer.name}[{self.start}:{self.stop}]"


def _span(member: Buffer, start: int, stop: int) -> View:
    """Elements of a member as columns: all of them, or some of a vector. A matrix is not cut inside."""
    if (start, stop) == (0, member.elements):
        return member.all
    if len(member.shape) == 1:
        return member.columns(start, stop)
    raise ProgramError(f"a span of a region ends inside {member.name}: it must cover its members whole.")


@dataclass(frozen=True)
class Argument:
    """What a call does with a view: read it, write it, add to it, or update it in place."""

    name: str
    view: View
    mode: str  # "read", "write", "add", "update"


@dataclass(frozen=True)
class Output:
    """How a model asks for an output: `write(buffer)`, `add(buffer)`, `update(buffer)`."""

    view: View
    mode: str


def write(target: Buffer | View | None) -> Output | None:
    return _output(target, "write")


def add(target: Buffer | View | None) -> Output | None:
    return _output(target, "add")


def update(target: Buffer | View | None) -> Output | None:
    return _output(target, "update")


def _output(target: Buffer | View | None, mode: str) -> Output | None:
    """None stands for an output nobody needs: the gradient of a bias that is not there."""
    if target is None:
        return None
    if not isinstance(target, Buffer | View):
        raise ProgramError(f"{mode}(…) takes a buffer or some of its columns, not {target!r}.")
    return Output(as_view(target), mode)


def as_view(target: Buffer | View) -> View:
    return target.all if isinstance(target, Buffer) else target


@dataclass(frozen=True)
class Call:
    """One op applied to buffers, forward or backward, made at one line of source."""

    op: str
    direction: str
    arguments: tuple[Argument, ...]
    scalars: tuple[tuple[str, Any], ...]
    phase: str
    section: str  # the part of the model it belongs to: "embedding", "blocks.3", "head"
    source: str  # file:line
    stack: tuple[str, ...] = ()  # path:line of that, of who called it, and so on up to the whole program

    def __repr__(self) -> str:
        where = f"{self.section + ', ' if self.section else ''}{self.phase}, {self.source}"
        done: dict[str, list[str]] = {}
        for argument in self.arguments:
            done.setdefault(MODES[argument.mode], []).append(f"{argument.name}={argument.view.name}")
        told = "; ".join(f"{mode} {', '.join(names)}" for mode, names in done.items())
        return f"<{self.title} ({where}) {told}>"

    @property
    def spec(self) -> Spec:
        """What the op is: shapes, roles, formulas."""
        spec: Spec = OPS[self.op].SPEC
        return spec

    @property
    def signature(self) -> Signature:
        """What this direction of it reads and writes."""
        return self.spec.signature(self.direction)

    @property
    def title(self) -> str:
        """`linear.backward`"""
        return f"{self.op}.{self.direction}"

    @property
    def at(self) -> str:
        """A part of a model makes its calls at the same lines for everyone, so its user is named too."""
        callers = [PurePath(line).name for line in self.stack[1:]]
        user = next((line for line in callers if line.partition(":")[0] != self.source.partition(":")[0]), None)
        return f"{self.title} at {self.source}" + (f", from {user}" if user else "")

    @property
    def parts(self) -> tuple[Call, ...]:
        """The calls that it is made of: itself, unless it is a fused one."""
        return (self,)

    @property
    def intermediates(self) -> tuple[Buffer, ...]:
        """What it may leave unwritten between its parts."""
        return ()

    @property
    def over(self) -> tuple[tuple[Buffer, Buffer], ...]:
        """What it may write over what it reads for the last time, number by number."""
        return ()

    @property
    def reads(self) -> tuple[Argument, ...]:
        """Adding and updating read as well."""
        return tuple(argument for argument in self.arguments if argument.mode != "write")

    @property
    def writes(self) -> tuple[Argument, ...]:
        """Its results, whether written, added to or updated."""
        return tuple(argument for argument in self.arguments if argument.mode != "read")

    @cached_property
    def dims(self) -> Dims:
        """The sizes of its letters: B, T, C, …"""
        return self.spec.dims({argument.name: argument.view.shape for argument in self.arguments})

    @property
    def flops(self) -> int:
        """Of this call."""
        asked = frozenset(argument.name for argument in self.writes)
        count: int = OPS[self.op].flops(self.direction, self.dims, asked, dict(self.scalars))
        return count

    @property
    def numbers(self) -> list[Any]:
        """Its scalars in order, as a kernel takes them."""
        return [float(value) if isinstance(value, Scalar) else value for _, value in self.scalars]

    def has(self, name: str) -> bool:
        """Whether it was given this argument."""
        return any(argument.name == name for argument in self.arguments)

    def __getitem__(self, name: str) -> View:
        for argument in self.arguments:
            if argument.name == name:
                return argument.view
        raise KeyError(name)


@dataclass(frozen=True)
class Program:
    """An immutable list of calls and the buffers they use."""

    calls: tuple[Call, ...]
    buffers: tuple[Buffer, ...]
    # For each call the forward call it belongs to, by index: of a backward the one that it differentiates, of a
    # recomputation the one that it repeats. The verifier knows.
    partners: tuple[int | None, ...] = ()
    # Whether gradients may lie where activations were, so that those of several batches cannot be added up.
    lean: bool = False

    @property
    def original(self) -> Program:
        """The program as its author wrote it, of a lowered one; else itself."""
        return self

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """For each call, the first and the last call of the original that it carries out."""
        return tuple((number, number) for number in range(len(self.calls)))

    def __repr__(self) -> str:
        phases = Counter(call.phase for call in self.calls)
        counted = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        return f"<program of {len(self.calls)} calls ({counted}), {self.parameters:,} parameters>"

    def phase(self, *phases: str) -> tuple[Call, ...]:
        """The calls of these phases."""
        return tuple(call for call in self.calls if call.phase in phases)

    @property
    def lent_gradients(self) -> Buffer | None:
        """The region of gradients where no phase zeroes them: what they hold is of one batch, and until a call writes
        one its place is free for others."""
        if any(call.phase == "zero" for call in self.calls):
            return None
        return next((buffer for buffer in self.buffers if buffer.kind == "gradient" and buffer.members), None)

    @property
    def trained(self) -> tuple[Buffer, ...]:
        """The weights that the update moves."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == "weight" and not buffer.members)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All, frozen ones too."""
        return tuple(buffer for buffer in self.buffers if isinstance(buffer, Weight))

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(weight.elements for weight in self.weights)

    @property
    def flops(self) -> int:
        """Of all calls together."""
        return sum(call.flops for call in self.calls)


def gradient_name(name: str) -> str:
    """`blocks.0.attn.qkv.weight` → `blocks.0.attn.qkv.dweight`: a gradient is d + the name, always."""
    path, dot, last = name.rpartition(".")
    return f"{path}{dot}d{last}"


def member_offsets(members: tuple[Buffer, ...]) -> tuple[list[int], int]:
    """The first element of each member within its region, and the elements of the region."""
    offsets, end = [], 0
    for member in members:
        offsets.append(end)
        end += -(-member.elements // MEMBER_ALIGNMENT) * MEMBER_ALIGNMENT
    return offsets, end
