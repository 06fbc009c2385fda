"""Maps of attention: who looks at whom, by shading in lines of text, and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from tapeless.pictures.svg import picture, text

SHADES = (" ", "·", "░", "▒", "▓", "█")
LIMITS = (0.05, 0.15, 0.3, 0.5, 0.75)  # from which weight on each shade but the first stands
LEGEND = "  ".join(f"{shade} from {limit:.0%}" for shade, limit in zip(SHADES[1:], LIMITS, strict=True))
LONGEST = 10  # characters of a word beside its row
TALLEST = 6  # characters of a word below its column
Map = tuple[str, Any]  # a head's name and its weights, queries by keys


def shade(weight: float) -> str:
    return SHADES[sum(weight >= limit for limit in LIMITS)]


def cell_len(word: str) -> int:
    """Columns of a terminal: some characters take two, and those that go over others none."""
    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in word)


def cut(word: str, most: int) -> str:
    """At most so many columns of a terminal, where some characters take two."""
    if cell_len(word) <= most:
        return word
    while cell_len(word) > most - 1:
        word = word[:-1]
    return f"{word}…"


def shown_keys(words: Sequence[str], width: int) -> int:
    """How many keys a terminal has room for."""
    return min(len(words), width - _margin(words))


def _margin(words: Sequence[str]) -> int:
    return min(max(cell_len(word) for word in words), LONGEST) + 1


def maps_drawn(maps: Sequence[Map], words: Sequence[str], width: int) -> list[str]:
    """Every head's map, as many beside one another as fit; queries downwards, keys across, the last of both where
    there is not room for all."""
    keys, margin = shown_keys(words, width), _margin(words)
    cell = 2 if margin + 2 * keys <= width else 1
    return _stacked(maps, width - margin, cell * keys, lambda group: _rows(group, words, keys, cell, margin))


def _stacked(maps: Sequence[Any], room: int, wide: int, drawn: Any) -> list[str]:
    """In as few rows as there is room for, and all of about the same length."""
    most = max(1, (room + 2) // (max(wide, 5) + 2))
    beside = -(-len(maps) // -(-len(maps) // most))
    lines: list[str] = []
    for first in range(0, len(maps), beside):
        lines += [*([""] if lines else []), *drawn(maps[first : first + beside])]
    return lines


def _rows(group: Sequence[Map], words: Sequence[str], keys: int, cell: int, margin: int) -> list[str]:
    wide = max(cell * keys, 5)
    lines = [" " * margin + "  ".join(name.ljust(wide) for name, _ in group)]
    queries = max(len(weights) for _, weights in group)
    for row in range(max(queries - keys, 0), queries):
        word = cut(words[len(words) - queries + row], margin - 1)
        parts = []
        for _, weights in group:
            at = row - (queries - len(weights))  # a map with fewer queries has the last of them
            shades = "".join(cell * shade(w) for w in weights[at][-keys:]) if at >= 0 else ""
            parts.append(shades.ljust(wide))
        lines.append(word + " " * (margin - cell_len(word)) + "  ".join(parts))
    return [*lines, *_below(words[-keys:], len(group), cell, margin, wide)]


def _below(words: Sequence[str], times: int, cell: int, margin: int, wide: int) -> list[str]:
    """The words of the columns, downwards."""
    shortened = [cut(word, TALLEST) for word in words]
    lines = []
    for depth in range(max(map(len, shortened))):
        letters = [word[depth] if depth < len(word) else " " for word in shortened]
        letters = [letter if cell_len(letter) <= cell else "?" for letter in letters]
        row = "".join(letter + " " * (cell - cell_len(letter)) for letter in letters)
        row += " " * (wide - cell * len(letters))
        lines.append(" " * margin + "  ".join([row] * times))
    return lines


def strips_drawn(steps: Sequence[tuple[int, Sequence[Map]]], words: Sequence[str], width: int) -> list[str]:
    """One strip per checkpoint: what the last word looks at, head beside head, over the course of a training."""
    margin = max(len(f"{step:,}") for step, _ in steps) + 1
    keys = min(len(words), width - margin)
    wide = max(keys, 5)
    count = len(steps[0][1])

    def drawn(group: Sequence[int]) -> list[str]:
        lines = [" " * margin + "  ".join(steps[0][1][number][0].ljust(wide) for number in group)]
        for step, maps in steps:
            strips = ["".join(map(shade, maps[number][1][-1][-keys:])).ljust(wide) for number in group]
            lines.append(f"{step:,}".rjust(margin - 1) + " " + "  ".join(strips))
        return [*lines, *_below(words[-keys:], len(group), 1, margin, wide)]

    return _stacked(range(count), width - margin, keys, drawn)


def maps_svg(rows: Sequence[tuple[str, Sequence[Map]]], words: Sequence[str], side: Sequence[str] | None = None) -> str:
    """A grid: in each row, a block's, a map for each head, with the words on both axes, or something else at the
    `side`. Where a map has fewer rows than names, it has the last of them."""
    keys, side = len(words), words if side is None else side
    cell = min(max(160 // keys, 3), 18)
    longest = min(max(map(len, (*words, *side))), 14)
    label = 7 * longest + 10
    wide, columns = cell * keys, max(len(maps) for _, maps in rows)
    parts, top = [], 30
    for name, maps in rows:
        tall = cell * max(len(weights) for _, weights in maps)
        parts.append(text(10, top - 12, name, "start"))
        for number, (head, weights) in enumerate(maps):
            left = label + number * (wide + 24)
            parts += _map_svg(head, weights, left, top + tall - cell * len(weights), cell)
            parts += [_downwards(left + cell * (k + 0.5), top + tall + 6, word) for k, word in enumerate(words)]
        queries = max(len(weights) for _, weights in maps)
        for row in range(queries):
            word = side[len(side) - queries + row]
            parts.append(text(label - 6, top + cell * (row + 0.5) + 4, cut(word, longest), "end"))
        top += tall + label + 30
    return picture(label + columns * (wide + 24), top, parts)


def _map_svg(head: str, weights: Any, left: float, top: float, cell: float) -> list[str]:
    wide, tall = cell * len(weights[0]), cell * len(weights)
    parts = [
        text(left + wide / 2, top - 6, head, "middle"),
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="none" stroke="#ccc"/>',
    ]
    for row, line in enumerate(weights):
        for column, weight in enumerate(line):
            if weight >= 0.01:  # fainter than that nothing is seen
                x, y = left + cell * column, top + cell * row
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell}" height="{cell}" fill="#05a" '
                    f'fill-opacity="{float(weight):.2f}"/>'
                )
    return parts


def _downwards(x: float, y: float, word: str) -> str:
    line = text(0, 0, word if len(word) <= 14 else f"{word[:13]}…", "start")
    return f'<g transform="translate({x - 4:.1f} {y:.1f}) rotate(90)">{line}</g>'
