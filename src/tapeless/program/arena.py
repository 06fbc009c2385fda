"""The memory: one aligned block in which every buffer is an offset, known before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tapeless.errors import ProgramError, TapelessError
from tapeless.ops.contract import Array, Shape
from tapeless.program.call import PERSISTENT, Buffer, Program, View, member_offsets
from tapeless.program.precision import Precision

ALIGNMENT = 64
LARGEST = 2**50  # bytes of a buffer: the sum over all of them still is a whole number of 64 bits
Range = tuple[int, int]  # first and last call, both included


@dataclass(frozen=True)
class Placement:
    """Where a buffer lies, and during which calls it holds something."""

    buffer: Buffer
    kind: str  # the buffer's own, or what became of a workspace: "saved" for the backward, or "scratch"
    dtype: str
    offset: int
    bytes: int
    ranges: tuple[Range, ...]

    @property
    def first_call(self) -> int:
        return self.ranges[0][0]

    @property
    def last_call(self) -> int:
        return self.ranges[-1][1]


@dataclass(frozen=True)
class Plan:
    """Every buffer's bytes. `peak_bytes` is the size of the arena: what it says is what is used."""

    program: Program
    precision: Precision
    placements: dict[str, Placement]
    workspace_offset: int
    peak_bytes: int

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes in use during each call; the arena holds the largest, rounded to aligned offsets."""
        steps = np.zeros(len(self.program.calls) + 1, np.int64)
        for placement in self.placements.values():
            if not placement.buffer.members:
                for first, last in placement.ranges:
                    steps[first] += placement.bytes
                    steps[last + 1] -= placement.bytes
        return [int(live) for live in np.cumsum(steps[:-1])]

    @property
    def peak_call(self) -> int:
        return int(np.argmax(self.live_bytes))

    @property
    def parameters(self) -> int:
        return self.program.parameters

    @property
    def flops(self) -> int:
        return self.program.flops

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of each persistent kind, then of the workspace that saved and scratch buffers share."""
        totals: dict[str, int] = {}
        for placement in self.placements.values():
            if placement.buffer.kind in PERSISTENT and not placement.buffer.members:
                totals[placement.kind] = totals.get(placement.kind, 0) + placement.bytes
        return totals | {"workspace": self.peak_bytes - self.workspace_offset}


LENT = ("weight", "frozen", "constant")  # what a second arena takes from the first instead of holding it again


def make_plan(
    program: Program, precision: Precision, *, share: bool = True, beside: Plan | None = None, lent: bool = False
) -> Plan:
    """Give every buffer its bytes.

    `share=False` gives each workspace buffer a place of its own, to compare with. `beside` plans a second
    program into the arena of a first: what persists is where it was, the workspace is used again. `lent` leaves out
    weights and constants: an arena that holds them already lends them.
    """
    ranges, whole = _live_ranges(program), (0, len(program.calls) - 1)
    placements: dict[str, Placement] = {}

    def place(buffer: Buffer, kind: str, offset: int, live: tuple[Range, ...]) -> int:
        size = _bytes(buffer, precision)
        placements[buffer.name] = Placement(buffer, kind, precision.dtype(buffer.role), offset, size, live)
        return _aligned(offset + size)

    end = 0
    for kind in PERSISTENT:
        if lent and kind in LENT:
            continue
        group = [buffer for buffer in program.buffers if buffer.kind == kind]
        region = next((buffer for buffer in group if buffer.members), None)
        inside: dict[str, int] = {}
        if region is not None:
            step = precision.itemsize(region.role)
            starts = member_offsets(region.members)[0]
            inside = {m.name: end + s * step for m, s in zip(region.members, starts, strict=True)}
        for buffer in group:
            start = beside.placements[buffer.name].offset if beside else inside.get(buffer.name, end)
            after = place(buffer, kind, start, (whole,))
            end = max(end, after) if buffer.name not in inside else end
    base = beside.workspace_offset if beside else end
    top = base
    workspace = [buffer for buffer in program.buffers if buffer.kind == "workspace"]
    occupied = _Occupied(base, sum(len(ranges[buffer.name]) for buffer in workspace))
    workspace.sort(key=lambda buffer: -buffer.elements)  # large first leaves the fewest holes
    for buffer in workspace:
        live = ranges[buffer.name]
        size = _bytes(buffer, precision)
        offset = occupied.lowest_gap(size, live) if share else top
        top = max(top, place(buffer, _kind_of_workspace(program, live), offset, live))
        occupied.add(placements[buffer.name])
    if beside and top > beside.peak_bytes:
        raise ProgramError(f"a program that needs {top:,} bytes does not fit into an arena of {beside.peak_bytes:,}.")
    plan = Plan(program, precision, placements, base, beside.peak_bytes if beside else top)
    verify_plan(plan)
    return plan


def verify_plan(plan: Plan) -> None:
    """No two buffers overlap while both hold something (a region and its own members excepted)."""
    leaves = sorted(
        (p for p in plan.placements.values() if not p.buffer.members), key=lambda placement: placement.offset
    )
    for index, low in enumerate(leaves):
        for high in leaves[index + 1 :]:
            if high.offset >= low.offset + low.bytes:
                break
            clash = _first_common_call(low.ranges, high.ranges)
            if clash is not None:
                call = plan.program.calls[clash]
                raise ProgramError(
                    f"{low.buffer.name} and {high.buffer.name} overlap at byte {high.offset:,} while both are "
                    f"live, during call {clash}, {call.title} at {call.source}."
                )


def _bytes(buffer: Buffer, precision: Precision) -> int:
    size = buffer.elements * precision.itemsize(buffer.role)
    if size > LARGEST:
        raise TapelessError(f"{buffer.name} alone takes {size:,} bytes, more than any machine has: make it smaller.")
    return size


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _live_ranges(program: Program) -> dict[str, tuple[Range, ...]]:
    """When each workspace buffer holds a value that is still needed: from a whole write to the last use."""
    ranges: dict[str, list[Range]] = {}
    for index, call in enumerate(program.calls):
        fresh: dict[str, int] = {}  # columns this call writes anew
        for argument in call.writes:
            name, view = argument.view.buffer.name, argument.view
            fresh[name] = fresh.get(name, 0) + (view.stop - view.start if argument.mode == "write" else 0)
        read = {argument.view.buffer.name for argument in call.reads}
        for name in fresh.keys() | read:
            buffer = next(a.view.buffer for a in call.arguments if a.view.buffer.name == name)
            spans = ranges.setdefault(name, [])
            if not spans or (name not in read and fresh.get(name) == buffer.shape[-1]):
                spans.append((index, index))
            else:
                spans[-1] = (spans[-1][0], index)
    return {name: tuple(spans) for name, spans in ranges.items()}


def _kind_of_workspace(program: Program, live: tuple[Range, ...]) -> str:
    """Saved, if one value of it lives from the forward into the backward; else scratch."""
    for first, last in live:
        if (program.calls[first].phase, program.calls[last].phase) == ("forward", "backward"):
            return "saved"
    return "scratch"


def _first_common_call(some: tuple[Range, ...], others: tuple[Range, ...]) -> int | None:
    for first, last in some:
        for begin, end in others:
            if first <= end and begin <= last:
                return max(first, begin)
    return None


class _Occupied:
    """What lies where during which calls, a row for each range; in arrays, as deep models have many thousands."""

    def __init__(self, base: int, most: int) -> None:
        self._base, self._count = base, 0
        self._first, self._last, self._offset, self._end = np.zeros((4, most), np.int64)

    def add(self, placement: Placement) -> None:
        for first, last in placement.ranges:
            row, self._count = self._count, self._count + 1
            self._first[row], self._last[row] = first, last
            self._offset[row], self._end[row] = placement.offset, _aligned(placement.offset + placement.bytes)

    def lowest_gap(self, size: int, live: tuple[Range, ...]) -> int:
        """The lowest offset at which nothing that lives at the same time is in the way."""
        firsts, lasts = self._first[: self._count], self._last[: self._count]
        rivals = np.zeros(self._count, bool)
        for first, last in live:
            rivals |= (firsts <= last) & (first <= lasts)
        offsets, ends = self._offset[: self._count][rivals], self._end[: self._count][rivals]
        order = np.argsort(offsets, kind="stable")
        reached = np.maximum.accumulate(np.concatenate([[self._base], ends[order]]))  # by all that lies below
        free = np.flatnonzero(reached[:-1] + size <= offsets[order])
        return int(reached[free[0]] if len(free) else reached[-1])


class Arena:
    """The block itself. `array` gives the view of a buffer; nothing is ever copied or moved."""

    def __init__(
        self,
        plan: Plan,
        *,
        block: Array | None = None,
        scratch: dict[Shape, Array] | None = None,
        lender: Arena | None = None,
    ) -> None:
        self.plan = plan
        self.block = _allocate(plan.peak_bytes) if block is None else block
        # What kernels need while they run and nobody reads afterwards, by shape. Arenas whose programs never run at the
        # same time may have it in common, as they may the block.
        self.scratch: dict[Shape, Array] = {} if scratch is None else scratch
        self._lender = lender  # whose weights and constants this arena uses instead of its own

    def array(self, target: Buffer | View) -> Array:
        if isinstance(target, View):
            return self.array(target.buffer)[..., target.start : target.stop]
        if self._lender is not None and target.kind in LENT:
            return self._lender.array(self._lender.plan.placements[target.name].buffer)
        placement = self.plan.placements[target.name]
        raw = self.block[placement.offset : placement.offset + placement.bytes]
        return raw.view(placement.dtype).reshape(placement.buffer.shape)

    def poison(self) -> None:
        """NaN wherever a program must write before it reads: gradients, outputs and the whole workspace.

        All bits set is NaN in every float type and −1 in integers.
        """
        for placement in self.plan.placements.values():
            if placement.kind in ("gradient", "output"):
                self.block[placement.offset : placement.offset + placement.bytes] = 0xFF
        self.block[self.plan.workspace_offset :] = 0xFF


def _allocate(size: int) -> Array:
    try:
        raw = np.zeros(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError, OverflowError):
        raise TapelessError(
            f"this needs {size:,} bytes in one block, which this machine cannot give: "
            f"take a smaller batch, time or model, or recompute=True."
        ) from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
