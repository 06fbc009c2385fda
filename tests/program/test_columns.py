"""Stretches of columns beside plain lists with an entry for every column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.program.columns import (
    Columns,
    added,
    all_of,
    cut,
    empty,
    joined,
    nothing,
    put,
    split,
    things,
    width_of,
)
from tests.random_cases import cases

Plain = list[tuple[tuple[str, int], ...] | None]  # of every column: what it holds, and which column of it


def plain(columns: Columns) -> Plain:
    return [
        None if held is None else tuple((thing, first + at) for thing, first in held)
        for width, held in columns
        for at in range(width)
    ]


held = st.none() | st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=2).map(
    lambda pairs: tuple(sorted(pairs))
)
rows = st.lists(st.tuples(st.integers(1, 4), held), min_size=1, max_size=4).map(tuple)


def test_whole_rows() -> None:
    assert plain(all_of("v", 3)) == [(("v", 0),), (("v", 1),), (("v", 2),)]
    assert plain(empty(2)) == [(), ()]
    assert plain(nothing(2)) == [None, None]
    assert width_of(all_of("v", 3) + empty(2)) == 5
    assert things(all_of("v", 3) + nothing(1) + empty(2) + all_of("w", 1)) == ["v", "w"]


@cases(100)
@given(rows, st.data())
def test_cut_split_and_put(columns: Columns, data: st.DataObject) -> None:
    width = len(plain(columns))
    start = data.draw(st.integers(0, width))
    stop = data.draw(st.integers(start, width))
    assert plain(cut(columns, start, stop)) == plain(columns)[start:stop]
    first, rest = split(columns, stop)
    assert (plain(first), plain(rest)) == (plain(columns)[:stop], plain(columns)[stop:])
    new = cut(data.draw(rows), 0, stop - start) if stop > start else ()
    if width_of(new) == stop - start:
        assert plain(put(columns, start, stop, new)) == plain(columns)[:start] + plain(new) + plain(columns)[stop:]


@cases(100)
@given(rows)
def test_the_same_content_has_one_form(columns: Columns) -> None:
    """However it is cut up: that is what makes two of them comparable."""
    whole = joined(columns)
    assert plain(whole) == plain(columns)
    assert joined(tuple(stretch for at in range(width_of(columns)) for stretch in cut(columns, at, at + 1))) == whole
    assert put(columns, 0, 0, ()) == whole


@cases(100)
@given(rows, rows)
def test_added_column_by_column(some: Columns, others: Columns) -> None:
    width = min(width_of(some), width_of(others))
    some, others = cut(some, 0, width), cut(others, 0, width)
    together = added(some, others)
    pairs = list(zip(plain(some), plain(others), strict=True))
    if any(one is None or other is None for one, other in pairs):
        assert together is None
    else:
        assert together is not None
        assert [sorted(each or ()) for each in plain(together)] == [sorted([*a, *b]) for a, b in pairs]  # type: ignore[misc]
        assert together == joined(together) == added(others, some)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_columns_of_a_value_are_told_apart(stop: int) -> None:
    assert joined(cut(all_of("v", 4), 0, stop) + cut(all_of("v", 4), stop, 4)) == all_of("v", 4)
    assert joined(cut(all_of("v", 4), stop, 4) + cut(all_of("v", 4), 0, stop)) != all_of("v", 4)
