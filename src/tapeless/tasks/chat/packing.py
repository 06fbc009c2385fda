"""Conversations in rows: as many as fit share one, where the model keeps them apart."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import Packed
from tapeless.ops.contract import Array
from tapeless.tasks.chat.prepare import Side
from tapeless.tasks.data.batches import IGNORED
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.epochs import Epochs


class PackedRows:
    """Rows of `time` positions. A position holds a token and aims at the next, so that a conversation takes one less
    than it has tokens. What does not fit in a row is cut off behind; where no answer is left, it is left out."""

    def __init__(self, side: Side, time: int, packed: bool) -> None:
        self.side, self.time, self.packed = side, time, packed
        self._begins = np.cumsum(side.lengths) - side.lengths
        self.longest = int(side.lengths.max()) - 1
        kept, self.cut, self.lost = [], 0, 0  # answers that a row's end cuts off, conversations that lose all of theirs
        for number in range(len(side)):
            learned = self._learned(number)
            if not learned[1 : time + 1].any():
                self.lost += 1
                continue
            kept.append(number)
            self.cut += len(learned) > time + 1
        if not kept:
            raise TapelessError(
                f"no conversation has an answer within its first {time} positions: give at least "
                f"--time {self._needed():,}."
            )
        self.rows = _packed(kept, np.minimum(side.lengths[kept] - 1, time), time if packed else 0)

    def __len__(self) -> int:
        return len(self.rows)

    def _learned(self, number: int) -> Array:
        begin = self._begins[number]
        return self.side.learned[begin : begin + self.side.lengths[number]]

    def _needed(self) -> int:
        """Positions up to the first token of the nearest answer."""
        return min(int(np.flatnonzero(self._learned(number)[1:])[0]) + 1 for number in range(len(self.side)))

    def make(self, chosen: Sequence[int], batch: int) -> tuple[Packed | Array, Array]:
        """A batch of these rows; where they are fewer, the rest aims at nothing."""
        tokens = np.zeros((batch, self.time), np.int64)
        targets = np.full((batch, self.time), IGNORED, np.int64)
        segments = np.zeros((batch, self.time), np.int64)
        for row, which in enumerate(chosen):
            place = 0
            for segment, number in enumerate(self.rows[which]):
                begin, length = int(self._begins[number]), int(self.side.lengths[number])
                length = min(length - 1, self.time)
                span = slice(place, place + length)
                aims = self.side.ids[begin + 1 : begin + 1 + length].astype(np.int64)
                tokens[row, span] = self.side.ids[begin : begin + length]
                targets[row, span] = np.where(self.side.learned[begin + 1 : begin + 1 + length], aims, IGNORED)
                segments[row, span] = segment
                place += length
            segments[row, place:] = len(self.rows[which])
        return (Packed(tokens, segments) if self.packed else tokens), targets

    @property
    def filled(self) -> float:
        """The share of all positions that hold a token."""
        lengths = np.minimum(self.side.lengths - 1, self.time)
        return sum(int(lengths[row].sum()) for row in self.rows) / (len(self.rows) * self.time)


def told_cut(*sides: PackedRows) -> str:
    """What the rows' end cuts off, for people; nothing where it is nothing."""
    cut, lost = (sum(getattr(each, name) for each in sides) for name in ("cut", "lost"))
    what = [f"in {cut:,} an answer is cut off"] * bool(cut) + [f"{lost:,} are left out"] * bool(lost)
    return f"at {sides[0].time:,} positions {' and '.join(what)}" if what else ""


def _packed(numbers: Sequence[int], lengths: Array, time: int) -> list[list[int]]:
    """The longest first, each into the fullest row that still has room for it. With no `time`, a row each."""
    if not time:
        return [[number] for number in numbers]
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # how much room, and the row
    for which in np.argsort(-lengths, kind="stable"):
        length = int(lengths[which])
        found = bisect_left(free, (length, -1))
        if found == len(free):
            room, row = time, len(rows)
            rows.append([])
        else:
            room, row = free.pop(found)
        rows[row].append(numbers[which])
        if room > length:
            insort(free, (room - length, row))
    return rows


class ChatBatches(Epochs):
    """Rows without end; each once in an epoch, in an order of its own."""

    def __init__(self, rows: PackedRows, batch: int, seed: int) -> None:
        if len(rows) < batch:
            held = "share" if rows.packed else "are"
            raise TapelessError(
                f"a batch has {batch} rows, and the conversations {held} {len(rows)}: give --batch {len(rows)}, or "
                f"more of them."
            )
        self._rows, self._seed = rows, seed
        super().__init__(len(rows) // batch, rows=len(rows), batch=batch, time=rows.time, seed=seed)

    def draw(self, epoch: int) -> Array:
        return order(random_bits(self._seed, 2, epoch), len(self._rows))

    def make(self, chosen: Array) -> tuple[Packed | Array, Array]:
        return self._rows.make([int(each) for each in chosen], self._batch)


def every_row(rows: PackedRows, batch: int, limit: int | None = None) -> Iterator[tuple[Packed | Array, Array]]:
    """Every row once; with a `limit` at most so many batches, of rows spread evenly over all."""
    count = len(rows) if limit is None else min(len(rows), limit * batch)
    chosen = [number * len(rows) // count for number in range(count)]
    for first in range(0, count, batch):
        yield rows.make(chosen[first : first + batch], batch)
