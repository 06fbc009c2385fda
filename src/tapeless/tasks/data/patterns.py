"""How long a regular expression may look at a text, from what it says alone.

The tokenizers package matches by backtracking: after a mistake it goes back to where it could have chosen otherwise, so
that `(a+)+$` takes twice as long with every a before a b. Here the choices are counted that may be tried from one place
of a text of n characters, as c · nᵈ: of what follows one another they multiply. No choice is ever taken back if nothing
that comes after can fail, nor out of a group that is possessive or atomic. Counted are the published patterns of GPT-2,
Llama 3, Qwen and their kin with d ≤ 1 and c ≤ 34.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

LONGEST = 1 << 14  # characters
DEEPEST = 32  # groups inside one another
MOST_CHOICES = 4096.0
MOST_DEGREE = 1.0
LARGEST = 700  # whose exponential is still a number
FOREVER = ", so that on some texts it could take forever"
# Oniguruma's way of writing patterns, as far as choices go. What goes back to a group, or calls it, is not among it.
TOKEN = re.compile(
    r"""(?P<group>\((?:\?(?P<kind>[>=!]|<[=!]|[<'][^>']*[>']|[im-]*(?::|(?=\)))))?)
      | (?P<repeat>[*+?][+?]?|\{(?=,?\d)(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\}\??)
      | (?P<mark>[|)])
      | (?P<one>\\(?:[pPx]\{[^}]*\}|[^gkK1-9])|[^\\\[(*+?])""",
    re.VERBOSE | re.DOTALL,
)
IN_CLASS = re.compile(r"\\.|\[\^?\]?|\]", re.DOTALL)  # a bracket at the beginning is a character
Cost = tuple[float, float]  # degree and factor
SINGLE: Cost = (0.0, 1.0)


class Endless(Exception):  # noqa: N818 (it is said as the middle of a sentence)
    """What is wrong with a pattern."""


@dataclass(frozen=True)
class Node:
    """Part of a pattern: `one` character, class of them or place between two; a `row` of parts, `either` of them; one
    part `repeated`; or an `atomic` group, which may be one that only looks."""

    kind: str
    parts: tuple[Node, ...] = ()
    least: int = 1
    most: float = 1
    kept: bool = False  # possessive: what it took is not given back
    looks: bool = False


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
    if node.kind == "row":
        after = [follows or any(map(_fails, node.parts[place + 1 :])) for place in range(len(node.parts))]
        return _product([_cost(each, last) for each, last in zip(node.parts, after, strict=True)])
    if node.kind == "either":
        costs = [_cost(each, follows) for each in node.parts]
        return max(degree for degree, _ in costs), sum(factor for _, factor in costs)
    if node.kind == "atomic":
        return _cost(node.parts[0], follows=False)
    return SINGLE if node.kind == "one" else _cost_repeated(node, follows)


def _cost_repeated(node: Node, follows: bool) -> Cost:
    part, least = node.parts[0], node.least
    inner = _cost(part, follows=True)
    if node.kept or not follows:
        last = _cost(part, follows=False)
        return last if least < 2 else _product([_power(inner, least - 1), last])
    if node.most == inf:
        return (1.0, 1.0) if inner == SINGLE else (inf, inf)
    ways = (_power(inner, count)[1] for count in range(least, int(node.most) + 1))
    return _power(inner, int(node.most))[0], node.most - least + 1 if inner == SINGLE else sum(ways)


def _fails(node: Node) -> bool:
    if node.kind == "either":
        return all(map(_fails, node.parts))
    return node.kind == "one" or node.looks or (node.least > 0 and any(map(_fails, node.parts)))


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
    def __init__(self, source: str) -> None:
        self._source, self._place, self._depth = source, 0, 0

    def whole(self) -> Node:
        found = self._either()
        if self._place < len(self._source):
            raise self._strange()
        return found

    def _strange(self) -> Endless:
        return Endless(f"which is not understood from its character {self._place:,} on, nor how long it would take")

    def _take(self, text: str) -> bool:
        seen = self._source.startswith(text, self._place)
        self._place += len(text) * seen
        return seen

    def _either(self) -> Node:
        """To the end, or to the bracket that closes a group."""
        rows: list[list[Node]] = [[]]
        while self._place < len(self._source) and self._source[self._place] != ")":
            if self._take("|"):
                rows.append([])
            elif self._source[self._place] == "[":
                self._skip_class()
                rows[-1].append(Node("one"))
            else:
                self._take_token(rows[-1])
        return Node("either", tuple(Node("row", tuple(row)) for row in rows))

    def _take_token(self, row: list[Node]) -> None:
        found = TOKEN.match(self._source, self._place)
        if found is None or (found["repeat"] and not row):
            raise self._strange()
        if found["repeat"]:
            row.append(self._repeated(row.pop(), found))
        self._place = found.end()
        if found["group"]:
            row.append(self._group(found["kind"] or ""))
        elif found["one"]:
            row.append(Node("one"))

    def _group(self, kind: str) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._strange()
        inside = self._either()
        if not self._take(")"):
            raise self._strange()
        self._depth -= 1
        looks = kind in ("=", "!", "<=", "<!")
        return Node("atomic", (inside,), looks=looks) if looks or kind == ">" else inside

    def _skip_class(self) -> None:
        """To behind its closing bracket; a class may hold others."""
        depth = 0
        while True:
            found = IN_CLASS.search(self._source, self._place)
            if found is None or depth > DEEPEST:
                raise self._strange()
            self._place = found.end()
            depth += {"[": 1, "]": -1}.get(found[0][0], 0)
            if not depth:
                return

    def _repeated(self, part: Node, found: re.Match[str]) -> Node:
        mark, text = found["repeat"][0], found["repeat"]
        if mark != "{":
            return Node("repeated", (part,), int(mark == "+"), 1 if mark == "?" else inf, kept=text[1:] == "+")
        if max(len(found["least"]), len(found["most"])) > 4:
            raise self._strange()
        least = int(found["least"] or 0)
        most = float(found["most"] or inf) if found["comma"] else least
        if most < least:
            raise self._strange()
        # Of one number a ? behind it says that it may also be none.
        return Node("repeated", (part,), 0 if text.endswith("?") and not found["comma"] else least, most)
