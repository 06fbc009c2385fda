"""What lies in the columns of a buffer, stretch by stretch.

A stretch is some columns side by side that hold the same things, each from a column of its own on: q, k and v are
three stretches of one product, and the columns 64 to 128 of a value are not its columns 0 to 64. The things are
values (one a stretch) or parts of a gradient (any number, the same one as often as it was added); None is nothing.
"""

from __future__ import annotations

from typing import Any

Held = tuple[tuple[Any, int], ...]  # what, and from which of its columns on
Stretch = tuple[int, Held | None]  # how many columns
Columns = tuple[Stretch, ...]


def all_of(thing: Any, width: int) -> Columns:
    return ((width, ((thing, 0),)),)


def empty(width: int) -> Columns:
    """Nothing has been added yet; not the same as nothing."""
    return ((width, ()),)


def nothing(width: int) -> Columns:
    return ((width, None),)


def width_of(columns: Columns) -> int:
    return sum(width for width, _ in columns)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    if start == 0 and len(columns) == 1 and columns[0][0] == stop:
        return columns  # most buffers hold one thing, and are asked for all of it
    found, at = [], 0
    for width, held in columns:
        first, last = max(start, at), min(stop, at + width)
        if first < last:
            found.append((last - first, _moved(held, first - at)))
        at += width
        if at >= stop:
            break
    return tuple(found)


def split(columns: Columns, width: int) -> tuple[Columns, Columns]:
    """The first so many columns, and the rest: one after the other, a long row is taken apart in one pass."""
    count, taken = 0, 0
    while taken < width:
        taken += columns[count][0]
        count += 1
    over = cut(columns[:count], width, taken)
    return cut(columns[:count], 0, width), over + columns[count:]


def put(columns: Columns, start: int, stop: int, new: Columns) -> Columns:
    return joined(cut(columns, 0, start) + new + cut(columns, stop, width_of(columns)))


def added(some: Columns, others: Columns) -> Columns | None:
    """Both together, column by column; None where one of them is nothing anywhere."""
    found, at = [], 0
    for stop in sorted(_ends(some) | _ends(others)):
        ((_, mine),), ((_, other),) = cut(some, at, stop), cut(others, at, stop)
        if mine is None or other is None:
            return None
        found.append((stop - at, tuple(sorted(mine + other))))
        at = stop
    return joined(tuple(found))


def joined(columns: Columns) -> Columns:
    """Stretches that go on where the one before them ends are one: the same content has one form."""
    found: list[Stretch] = []
    for width, held in columns:
        if found and _moved(found[-1][1], found[-1][0]) == held:
            found[-1] = (found[-1][0] + width, found[-1][1])
        else:
            found.append((width, held))
    return tuple(found)


def things(columns: Columns) -> list[Any]:
    return [thing for _, held in columns for thing, _ in held or ()]


def _moved(held: Held | None, by: int) -> Held | None:
    return tuple((thing, first + by) for thing, first in held) if held and by else held


def _ends(columns: Columns) -> set[int]:
    ends, at = set(), 0
    for width, _ in columns:
        at += width
        ends.add(at)
    return ends
