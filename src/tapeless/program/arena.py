"""The plan of the memory: one aligned block in which every buffer is an offset, known before anything is allocated."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from operator import or_
from typing import NamedTuple

import numpy as np

from tapeless.errors import ProgramError, TapelessError
from tapeless.kernels.native import Scratch
from tapeless.program.call import PERSISTENT, Buffer, Call, Program, member_offsets
from tapeless.program.precision import Precision, itemsize
from tapeless.shown import Sheet, Shown, Table, flops, shape, size

ALIGNMENT = 64
LARGEST = 2**50  # bytes of a buffer: the sum over all of them still is a whole number of 64 bits
KERNEL_SCRATCH = "kernel scratch"
MOST_SHOWN = 200  # buffers in a notebook
TRIES = 24  # orders in which buffers are placed, of each kind,
MOST_PLACED = 7500  # as long as these are no more buffers than this
FEW = 300  # ranges: see _Few
Range = tuple[int, int]  # first and last call, both included


@dataclass(frozen=True)
class Placement:
    """Where a buffer lies, and during which calls it holds something."""

    buffer: Buffer
    kind: str  # the buffer's own; of a workspace "saved" for the backward or "scratch"; KERNEL_SCRATCH
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

    @cached_property
    def calls(self) -> int:
        """The same, as the bits of a number."""
        return reduce(or_, ((1 << last + 1) - (1 << first) for first, last in self.ranges))


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """Every buffer's bytes. `peak_bytes` is the size of the arena: what it says is what is used."""

    program: Program
    precision: Precision
    placements: dict[str, Placement]
    # By the calls of the original that it carries out: the arrays that a call's kernel has asked for, and that those of
    # the parts of a fused call have, one by one.
    scratch: dict[Range, tuple[Placement, ...]]
    over: dict[str, str]  # what lies where something lay that is read for the last time while it is written
    workspace_offset: int
    peak_bytes: int

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes in use during each call; the arena holds the largest, rounded to aligned offsets."""
        steps = np.zeros(len(self.program.calls) + 1, np.int64)
        for placement in self.placements.values():
            if not placement.buffer.members:
                below = self.over.get(placement.buffer.name)
                since = self.placements[below].last_call + 1 if below else 0
                for first, last in placement.ranges:
                    if last >= since:
                        steps[max(first, since)] += placement.bytes
                        steps[last + 1] -= placement.bytes
        return [int(live) for live in np.cumsum(steps[:-1])]

    @property
    def peak_call(self) -> int:
        """During which call most is in use."""
        return int(np.argmax(self.live_bytes))

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return self.program.parameters

    @property
    def flops(self) -> int:
        """Of a whole step."""
        return self.program.flops

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of each persistent kind, then of the workspace that saved and scratch buffers share, and with them
        gradients that are lent."""
        totals: dict[str, int] = {}
        for placement in self.placements.values():
            persists = placement.buffer.kind in PERSISTENT and placement.offset < self.workspace_offset
            if persists and not placement.buffer.members:
                totals[placement.kind] = totals.get(placement.kind, 0) + placement.bytes
        return totals | {"workspace": self.peak_bytes - self.workspace_offset}

    def _sheet(self) -> Sheet:
        program, peak = self.program, self.program.calls[self.peak_call]
        where = f"{peak.section + ', ' if peak.section else ''}{peak.phase}"
        lines = [
            ("arena", f"{self.peak_bytes:,} bytes ({size(self.peak_bytes)}), in {self.precision.described()}"),
            ("peak", f"at call {self.peak_call}, {peak.title} ({where})"),
            ("work", f"{flops(self.flops)} in {len(program.calls)} calls, {self.parameters:,} parameters"),
        ]
        regions = [(kind, f"{total:,}", size(total)) for kind, total in self.bytes_by_kind().items()]
        leaves = [placement for placement in self.placements.values() if not placement.buffer.members]
        largest = sorted(leaves, key=lambda placement: -placement.bytes)[:MOST_SHOWN]
        buffers = [
            (
                each.buffer.name,
                each.kind,
                shape(each.buffer.shape),
                each.dtype,
                f"{each.offset:,}",
                f"{each.bytes:,}",
                ", ".join(f"{first}–{last}" for first, last in each.ranges),
            )
            for each in largest
        ]
        left = len(leaves) - len(largest)
        title = f"the {len(largest)} largest of {len(leaves)} buffers" if left else f"all {len(leaves)} buffers"
        columns = ("buffer", "kind", "shape", "type", "offset", "bytes", "calls")
        tables = [
            Table(("region", "bytes", ""), regions, right=(1, 2)),
            Table(columns, buffers, right=(4, 5), title=title),
        ]
        return Sheet("memory plan", lines, tables)


LENT = ("weight", "frozen", "constant")  # what a second arena takes from the first instead of holding it again


Asked = Callable[[Call, Precision], Sequence[Scratch]]


def no_scratch(call: Call, precision: Precision) -> Sequence[Scratch]:
    return ()


def make_plan(
    program: Program,
    precision: Precision,
    scratch: Asked = no_scratch,
    *,
    share: bool = True,
    beside: Plan | None = None,
    lent: bool = False,
) -> Plan:
    """Give every buffer its bytes, and every kernel the scratch that the backend says it needs. What the parts of a
    fused call touch lives through all of it, in whichever order it does their work.

    What a fused call writes `over` something lies there.

    Gradients that are lent (`Program.lent_gradients`) lie at the beginning of the workspace, together as ever, and what
    is through before the first of them is written lies there too.

    `share=False` gives each workspace buffer a place of its own, to compare with. `beside` plans a second
    program into the arena of a first: what persists is where it was, the workspace is used again. `lent` leaves out
    weights and constants: an arena that holds them already lends them.
    """
    found = _gathered(program, precision, scratch, share=share, beside=beside, lent=lent)
    placements, over = dict(found.placements), found.over
    offsets, top = _packed(found) if share else _in_a_row(found.movable, found.top)
    for each in (*found.workspace, *found.blocks):
        placements[each.buffer.name] = replace(each, offset=offsets[over.get(each.buffer.name, each.buffer.name)])
    at = {block.ranges[0][0]: placements[block.buffer.name].offset for block in found.blocks}
    given = {
        span: tuple(replace(each, offset=at[index] + each.offset, ranges=((index, index),)) for each in arrays)
        for span, index, arrays, _ in found.asked
    }
    peak = max(top, beside.peak_bytes if beside else 0)
    plan = Plan(program, precision, placements, given, over, found.base, peak)
    verify_plan(plan)
    return plan


def least_bytes(program: Program, precision: Precision, scratch: Asked = no_scratch) -> int:
    """What no plan takes less than: all that persists, and the workspace of the call that uses most of it."""
    return _gathered(program, precision, scratch).least


class _Gathered(NamedTuple):
    """All that a plan has a place for: what persists, which has one, and the workspace, which has none yet."""

    placements: dict[str, Placement]
    workspace: list[Placement]
    blocks: list[Placement]  # of the kernels' scratch, one a call
    asked: list[tuple[Range, int, list[Placement], int]]  # carrying out which calls, as which, what, how many bytes
    fixed: list[Placement]
    movable: list[Placement]  # the workspace and the blocks, less what lies over something
    over: dict[str, str]
    base: int
    top: int

    @property
    def least(self) -> int:
        return max(self.top, self.base + _most_in_use((*self.movable, *self.fixed)))


def _gathered(
    program: Program,
    precision: Precision,
    scratch: Asked,
    *,
    share: bool = True,
    beside: Plan | None = None,
    lent: bool = False,
) -> _Gathered:
    ranges, whole = _live_ranges(program), (0, len(program.calls) - 1)
    placements: dict[str, Placement] = {}

    def place(buffer: Buffer, kind: str, offset: int, live: tuple[Range, ...]) -> int:
        size = _bytes(buffer, precision)
        placements[buffer.name] = Placement(buffer, kind, precision.dtype(buffer.role), offset, size, live)
        return _aligned(offset + size)

    end, gradients = 0, program.lent_gradients
    for kind in PERSISTENT:
        if (lent and kind in LENT) or (kind == "gradient" and gradients):
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
    if gradients:
        since = {member.name: ranges[member.name][0][0] for member in gradients.members}
        starts, step = member_offsets(gradients.members)[0], precision.itemsize(gradients.role)
        for member, start in zip(gradients.members, starts, strict=True):
            place(member, "gradient", base + start * step, ((since[member.name], whole[1]),))
        top = place(gradients, "gradient", base, ((min(since.values()), whole[1]),))
    workspace = [
        Placement(
            buffer,
            _kind_of_workspace(program, ranges[buffer.name]),
            precision.dtype(buffer.role),
            0,
            _bytes(buffer, precision),
            ranges[buffer.name],
        )
        for buffer in program.buffers
        if buffer.kind == "workspace"
    ]
    asked = [
        (span, index, *place_scratch(call, scratch(call, precision)))
        for index, (outer, whole_call) in enumerate(zip(program.spans, program.calls, strict=True))
        for span, call in {outer: whole_call, **_by_part(outer, whole_call)}.items()
    ]
    sizes = [0] * len(program.calls)
    for _, index, _, needed in asked:
        sizes[index] = max(sizes[index], needed)
    blocks = [_scratch_block(program, index, size) for index, size in enumerate(sizes) if size]
    fixed = [placements[member.name] for member in gradients.members] if gradients else []
    behind = (each for each in gaps(beside.placements if beside else placements) if each.first_call)
    fixed += [replace(each, ranges=(whole,)) for each in behind]
    over = _over(program, {each.buffer.name: each for each in workspace}) if share else {}
    above = {below: each for each in workspace if (below := over.get(each.buffer.name))}
    movable = []
    for each in (*workspace, *blocks):
        if each.buffer.name not in over:
            others = above.get(each.buffer.name)
            movable.append(replace(each, ranges=_joined((*each.ranges, *others.ranges))) if others else each)
    return _Gathered(placements, workspace, blocks, asked, fixed, movable, over, base, top)


def gaps(placements: dict[str, Placement]) -> list[Placement]:
    """What lies between gradients that do not fill their places: zeros, from the beginning on, which the update reads
    and nobody may write."""
    found = []
    for region in placements.values():
        if region.buffer.kind == "gradient" and region.buffer.members:
            starts, end = member_offsets(region.buffer.members)
            step = region.bytes // end
            for member, start, stop in zip(region.buffer.members, starts, (*starts[1:], end), strict=True):
                size = (stop - start - member.elements) * step
                if size:
                    nothing = Buffer(f"behind {member.name}", "gradient", (size,))
                    offset = region.offset + (start + member.elements) * step
                    found.append(Placement(nothing, "gradient", "uint8", offset, size, region.ranges))
    return found


def make_plans(first: Program, other: Program, precision: Precision, scratch: Asked) -> tuple[Plan, Plan]:
    """Two programs for one arena, which is as large as the larger of them asks for."""
    plan = make_plan(first, precision, scratch)
    beside = make_plan(other, precision, scratch, beside=plan)
    return replace(plan, peak_bytes=beside.peak_bytes), beside


def place_scratch(call: Call, asked: Sequence[Scratch]) -> tuple[list[Placement], int]:
    """The arrays one after the other, from 0, and the bytes of them all."""
    placements, end = [], 0
    for number, (sizes, dtype) in enumerate(asked):
        size = prod(sizes) * itemsize(dtype)
        buffer = Buffer(f"scratch {number} of {call.title}", "workspace", sizes)
        placements.append(Placement(buffer, KERNEL_SCRATCH, dtype, end, size, ((0, 0),)))
        end = _aligned(end + size)
    return placements, end


def _by_part(outer: Range, call: Call) -> dict[Range, Call]:
    """The parts of a fused call, which are run one by one where somebody looks at what it leaves unwritten."""
    return {(number, number): part for number, part in enumerate(call.parts, outer[0])} if len(call.parts) > 1 else {}


def _scratch_block(program: Program, index: int, size: int) -> Placement:
    call = program.calls[index]
    buffer = Buffer(f"{call.writes[0].view.name}, {call.title}, call {index}", "workspace", (size,))
    return Placement(buffer, KERNEL_SCRATCH, "uint8", 0, size, ((index, index),))


def verify_plan(plan: Plan) -> None:
    """No two buffers overlap while both hold something (a region and its own members excepted, and what is written over
    what is read)."""
    leaves = sorted(
        (p for p in plan.placements.values() if not p.buffer.members), key=lambda placement: placement.offset
    )
    for index, low in enumerate(leaves):
        for high in leaves[index + 1 :]:
            if high.offset >= low.offset + low.bytes:
                break
            clash = _first_common_call(low.ranges, high.ranges)
            if clash is not None and not _is_over(plan, low, high) and not _is_over(plan, high, low):
                call = plan.program.calls[clash]
                raise ProgramError(
                    f"{low.buffer.name} and {high.buffer.name} overlap at byte {high.offset:,} while both are "
                    f"live, during call {clash}, {call.title} at {call.source}."
                )


def verify_fits(plan: Plan, program: Program) -> None:
    """No two buffers overlap where another list, of the same calls or some of them, runs over the same placements."""
    ranges, whole = _live_ranges(program), (0, max(len(program.calls) - 1, 0))
    placements = {}
    for name, each in plan.placements.items():
        if each.kind == KERNEL_SCRATCH:
            continue
        if each.buffer.kind != "workspace" and each.offset < plan.workspace_offset:
            placements[name] = replace(each, ranges=(whole,))
        elif name in ranges:
            held = ranges[name] if each.buffer.kind == "workspace" else ((ranges[name][0][0], whole[1]),)
            placements[name] = replace(each, ranges=held)
    for index, span in enumerate(program.spans):
        for number, each in enumerate(plan.scratch[span]):
            placements[f"{index}: scratch {number}"] = replace(each, ranges=((index, index),))
    verify_plan(replace(plan, program=program, placements=placements))


def _is_over(plan: Plan, above: Placement, below: Placement) -> bool:
    """Whether one takes the other's place: all of it, and only where that is read for the last time."""
    same = above.offset == below.offset and above.bytes == below.bytes
    after = all(first >= below.ranges[-1][0] and last >= below.last_call for first, last in above.ranges)
    return plan.over.get(above.buffer.name) == below.buffer.name and same and after


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
    for index, whole in enumerate(program.calls):
        for call in whole.parts:
            _extend(ranges, index, call)
    return {name: _joined(spans) for name, spans in ranges.items()}


def _extend(ranges: dict[str, list[Range]], index: int, call: Call) -> None:
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


def _joined(spans: Iterable[Range]) -> tuple[Range, ...]:
    """Spans in order of their beginnings, those that touch the same call made one."""
    joined: list[Range] = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            first, last = joined[-1][0], max(last, joined.pop()[1])
        joined.append((first, last))
    return tuple(joined)


def _over(program: Program, workspace: dict[str, Placement]) -> dict[str, str]:
    """Of what fused calls may write over what they read: what begins there, where the other ends."""
    found = {}
    for index, call in enumerate(program.calls):
        for above, below in call.over:
            mine, other = workspace.get(above.name), workspace.get(below.name)
            alike = mine and other and (mine.bytes, mine.dtype) == (other.bytes, other.dtype)
            if mine and other and alike and [first for first, _ in mine.ranges] == [index] == [other.last_call]:
                found[above.name] = below.name
    return found


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


def _in_a_row(movable: Sequence[Placement], top: int) -> tuple[dict[str, int], int]:
    offsets = {}
    for each in movable:
        offsets[each.buffer.name], top = top, _aligned(top + each.bytes)
    return offsets, top


def _packed(found: _Gathered) -> tuple[dict[str, int], int]:
    """An offset for each, and where the last of them ends: one after the other at the lowest place that is free. Large
    ones first leaves few holes, long-lived ones first sometimes fewer. As long as more is taken than ever is in use at
    once, what ended last comes first the next time; of all tries the best counts. A long list has fewer tries, so that
    a plan takes as long as the list is, and not as that squared: its holes are small beside it."""
    rows, least = sum(len(each.ranges) for each in (*found.movable, *found.fixed)), found.least
    orders = [sorted(found.movable, key=key) for key in (_large_first, _long_first)]
    best: tuple[dict[str, int], int] | None = None
    for _ in range(max(1, min(TRIES, MOST_PLACED // max(1, len(found.movable))))):
        for order in orders:
            occupied = _Few(found.base) if rows <= FEW else _Many(found.base, rows)
            offsets, end, last = dict[str, int](), found.top, 0
            for each in found.fixed:
                occupied.add(each.offset, each)
            for number, each in enumerate(order):
                offset = offsets[each.buffer.name] = occupied.lowest_gap(each)
                occupied.add(offset, each)
                if _aligned(offset + each.bytes) > end:
                    end, last = _aligned(offset + each.bytes), number
            if best is None or end < best[1]:
                best = offsets, end
            if best[1] == least or not order:
                return best
            order.insert(0, order.pop(last))
    return best or ({}, found.top)


def _large_first(placement: Placement) -> tuple[int, ...]:
    return (-placement.bytes,)


def _long_first(placement: Placement) -> tuple[int, ...]:
    return (-_calls(placement), -placement.bytes)


def _calls(placement: Placement) -> int:
    """During how many it holds something."""
    return sum(last - first + 1 for first, last in placement.ranges)


def _most_in_use(placements: Sequence[Placement]) -> int:
    """Bytes that are held at once, in the call in which that is most."""
    change = np.zeros(2 + max((each.last_call for each in placements), default=0), np.int64)
    for each in placements:
        for first, last in each.ranges:
            change[first] += _aligned(each.bytes)
            change[last + 1] -= _aligned(each.bytes)
    return int(np.cumsum(change).max())


class _Few:
    """What lies where during which calls, from below. Up to some hundred that are looked at one after the other take
    less than as many in arrays; the calls are the bits of a number, so what two have in common is one `&`."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._rows: list[tuple[int, int, int]] = []  # where it begins, where it ends, when it lives

    def add(self, offset: int, placement: Placement) -> None:
        insort(self._rows, (offset, _aligned(offset + placement.bytes), placement.calls))

    def lowest_gap(self, placement: Placement) -> int:
        """The lowest offset at which nothing that lives at the same time is in the way."""
        reached, size, calls = self._base, placement.bytes, placement.calls
        for offset, end, others in self._rows:
            if others & calls:
                if reached + size <= offset:
                    break
                reached = max(reached, end)
        return reached


class _Many:
    """The same with a row for each range, in arrays, as deep models have many thousands."""

    def __init__(self, base: int, most: int) -> None:
        self._base, self._count = base, 0
        self._first, self._last, self._offset, self._end = np.zeros((4, most), np.int64)

    def add(self, offset: int, placement: Placement) -> None:
        for first, last in placement.ranges:
            row, self._count = self._count, self._count + 1
            self._first[row], self._last[row] = first, last
            self._offset[row], self._end[row] = offset, _aligned(offset + placement.bytes)

    def lowest_gap(self, placement: Placement) -> int:
        firsts, lasts = self._first[: self._count], self._last[: self._count]
        rivals = np.zeros(self._count, bool)
        for first, last in placement.ranges:
            rivals |= (firsts <= last) & (first <= lasts)
        offsets, ends = self._offset[: self._count][rivals], self._end[: self._count][rivals]
        order = np.argsort(offsets, kind="stable")
        reached = np.maximum.accumulate(np.concatenate([[self._base], ends[order]]))  # by all that lies below
        free = np.flatnonzero(reached[:-1] + placement.bytes <= offsets[order])
        return int(reached[free[0]] if len(free) else reached[-1])
