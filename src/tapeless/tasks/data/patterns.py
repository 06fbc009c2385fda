"""How long a regular expression may look at a text, from what it says alone.

The tokenizers package matches by backtracking: after a mistake it goes back to where it could have chosen otherwise, so
that `(a+)+$` takes twice as long with every a before a b. Here the choices are counted that may be tried from one place
of a text of n characters, as c · nᵈ: of what follows one another they multiply. No choice is ever taken back where
nothing that comes after can fail, nor out of a group that is possessive or atomic. Counted are the published patterns
of GPT-2, Llama 3, Qwen and their kin with d ≤ 1 and c ≤ 34.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

LONGEST = 1 << 14  # characters
DEEPEST = 32  # groups inside one another
MOST_CHOICES = 4096.0
MOST_DEGREE = 1.0
LARGEST = 700  # whose exponential is still a number
FOREVER = ", so that on some texts it could take forever"
FOREIGN = ("?~", "?(", "?{", "?#", "*")


class Endless(Exception):  # noqa: N818 (it is said as the middle of a sentence)
    """What is wrong with a pattern."""


@dataclass(frozen=True)
class One:
    """A character, a class of them, or a place between two."""


@dataclass(frozen=True)
class Row:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeated:
    part: Node
    least: int
    most: float
    kept: bool = False  # possessive: what it took is not given back


@dataclass(frozen=True)
class AtomicGroup:
    """An atomic group, or one that only looks."""

    part: Node
    looks: bool


Node = One | Row | Either | Repeated | AtomicGroup
Cost = tuple[float, float]  # degree and factor
SINGLE: Cost = (0.0, 1.0)


def check_pattern(source: str) -> None:
    """Refuse a pattern whose search could take forever, and one that is not understood."""
    if len(source) > LONGEST:
        raise Endless(f"which has {len(source):,} characters, more than {LONGEST:,}")
    degree, choices = _cost(_Reader(source).whole(), follows=False)
    if degree == inf:
        raise Endless(f"in which what is repeated can match in several ways{FOREVER}")
    if degree > MOST_DEGREE:
        raise Endless(f"in which {degree:.0f} repetitions in a row can give back what they took{FOREVER}")
    if choices > MOST_CHOICES:
        raise Endless(f"which has {choices:.3g} ways to match at one place{FOREVER}")


def _cost(node: Node, follows: bool) -> Cost:
    """What may be tried from one place. `follows`: whether something comes after it that may fail."""
    match node:
        case Row(parts):
            after = [follows or any(_fails(each) for each in parts[place + 1 :]) for place in range(len(parts))]
            return _product([_cost(each, last) for each, last in zip(parts, after, strict=True)])
        case Either(parts):
            costs = [_cost(each, follows) for each in parts]
            return max(degree for degree, _ in costs), sum(factor for _, factor in costs)
        case AtomicGroup(part):
            return _cost(part, follows=False)
        case Repeated(part, least, most, kept):
            if kept or not follows:
                inner = _cost(part, follows=False)
                return inner if least < 2 else _product([_power(_cost(part, follows=True), least - 1), inner])
            inner = _cost(part, follows=True)
            if most == inf:
                return (1.0, 1.0) if inner == SINGLE else (inf, inf)
            ways = (_power(inner, count)[1] for count in range(least, int(most) + 1))
            return _power(inner, int(most))[0], most - least + 1 if inner == SINGLE else sum(ways)
    return SINGLE


def _fails(node: Node) -> bool:
    match node:
        case Row(parts):
            return any(map(_fails, parts))
        case Either(parts):
            return all(map(_fails, parts))
        case Repeated(part, least):
            return least > 0 and _fails(part)
        case AtomicGroup(part, looks):
            return looks or _fails(part)
    return True


def _product(costs: Sequence[Cost]) -> Cost:
    degree, factor = SINGLE
    for each in costs:
        degree, factor = degree + each[0], factor * each[1]
    return degree, factor


def _power(cost: Cost, count: int) -> Cost:
    degree, factor = cost
    if factor == inf:
        return inf, inf
    return degree * count, factor**count if count * log(factor) < LARGEST else inf


class _Reader:
    """Oniguruma's way of writing patterns, as far as choices go."""

    def __init__(self, source: str) -> None:
        self._source, self._place, self._depth = source, 0, 0

    def whole(self) -> Node:
        found = self._either()
        if self._place < len(self._source):
            raise self._strange()
        return found

    def _strange(self) -> Endless:
        return Endless(f"which is not understood from its character {self._place:,} on, nor how long it would take")

    def _sees(self, text: str) -> bool:
        return self._source.startswith(text, self._place)

    def _takes(self, text: str) -> bool:
        seen = self._sees(text)
        self._place += len(text) * seen
        return seen

    def _either(self) -> Node:
        rows = [self._row()]
        while self._takes("|"):
            rows.append(self._row())
        return rows[0] if len(rows) == 1 else Either(tuple(rows))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self._place < len(self._source) and not self._sees("|") and not self._sees(")"):
            parts.append(self._repeated(self._part()))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _part(self) -> Node:
        if self._takes("("):
            return self._group()
        if self._takes("["):
            self._class()
        elif self._takes("\\"):
            self._escape()
        elif any(map(self._sees, "*+?")):
            raise self._strange()
        else:
            self._place += 1
        return One()

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST or any(map(self._sees, FOREIGN)):
            raise self._strange()
        kept, looks = self._takes("?>"), any(map(self._takes, ("?=", "?!", "?<=", "?<!")))
        if not kept and not looks and self._takes("?"):
            self._options()
        found = Row(()) if self._sees(")") else self._either()
        if not self._takes(")"):
            raise self._strange()
        self._depth -= 1
        return AtomicGroup(found, looks) if kept or looks else found

    def _options(self) -> None:
        """A name, or what holds in a group; alone in it, for the rest of the group around it."""
        if self._takes("<") or self._takes("'"):
            self._until(">'")
            return
        while self._place < len(self._source) and self._source[self._place] in "im-":
            self._place += 1
        if not self._takes(":") and not self._sees(")"):
            raise self._strange()

    def _until(self, ends: str) -> str:
        begin = self._place
        while self._place < len(self._source) and self._source[self._place] not in ends:
            self._place += 1
        self._place += 1
        return self._source[begin : self._place - 1]

    def _escape(self) -> None:
        letter = self._source[self._place : self._place + 1]
        if not letter or letter in "gkK" or letter in "123456789":  # what goes back to a group, or calls it
            raise self._strange()
        self._place += 1
        if letter in "pPx" and self._takes("{"):
            self._until("}")

    def _class(self) -> None:
        """To behind its closing bracket; a class may hold others."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._strange()
        self._takes("^")
        self._takes("]")
        while not self._takes("]"):
            if self._place >= len(self._source):
                raise self._strange()
            if self._takes("["):
                self._class()
            elif self._takes("\\"):
                self._place += 1
            else:
                self._place += 1
        self._depth -= 1

    def _repeated(self, part: Node) -> Node:
        while True:
            if self._takes("*"):
                part = self._marked(part, 0, inf)
            elif self._takes("+"):
                part = self._marked(part, 1, inf)
            elif self._takes("?"):
                part = self._marked(part, 0, 1)
            elif (counted := self._counted()) is not None:
                part = Repeated(part, *counted)
            else:
                return part

    def _marked(self, part: Node, least: int, most: float) -> Node:
        kept = self._takes("+")
        if not kept:
            self._takes("?")
        return Repeated(part, least, most, kept)

    def _counted(self) -> tuple[int, float] | None:
        """{n}, {n,}, {,m} or {n,m}; any other brace is a character."""
        end = self._source.find("}", self._place)
        if not self._sees("{") or end < 0:
            return None
        low, comma, high = self._source[self._place + 1 : end].partition(",")
        if not (low or high) or not all(not each or (each.isascii() and each.isdigit()) for each in (low, high)):
            return None
        if max(len(low), len(high)) > 4:
            raise self._strange()
        self._place = end + 1
        least = int(low or 0)
        most: float = int(high) if high else inf if comma else least
        if most < least:
            raise self._strange()
        if self._takes("?"):  # reluctant, or, of one number, whether at all
            least = 0 if not comma else least
        return least, most
