"""Several curves over each other: in lines of text, where each is drawn with a letter of its own, and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from tapeless.pictures.svg import Panel, Points, Span, legend, picture

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SEVERAL = "*"  # curves in one place
COLOURS = ("#07c", "#e63", "#0a7", "#a3c", "#c90", "#699", "#933", "#366")
MARGIN = 10  # characters to the left of the curves
LOGARITHMIC = 20.0  # times the least from which a straight axis would squeeze the rest together


@dataclass(frozen=True)
class Curve:
    """Points with x rising. `beside` is drawn faintly, where there is room for it."""

    name: str
    points: Points
    beside: Points = ()


def drawn(curves: Sequence[Curve], width: int, height: int = 14) -> list[str]:
    """So many characters wide, the axes among them. The letters are those of the curves, in their order."""
    shown = [curve for curve in curves if curve.points]
    if not shown:
        return []
    across, up, logarithmic = _axes(shown)
    columns = max(width - MARGIN, 10)
    cells = [[" "] * columns for _ in range(height)]
    for letter, curve in zip(LETTERS, curves, strict=False):
        for column, row in _placed(curve.points, across, up, logarithmic, columns, height):
            held = cells[row][column]
            cells[row][column] = letter if held in (" ", letter) else SEVERAL
    values = _heights(up, logarithmic, height)
    labels = {row: f"{values[row]:.3g}" for row in (0, height // 2, height - 1)}
    rows = []
    for row, line in enumerate(cells):
        axis = f"{labels[row]:>{MARGIN - 2}} ┤" if row in labels else " " * (MARGIN - 1) + "│"
        rows.append(axis + "".join(line))
    first, last = f"{across[0]:,.0f}", f"{across[1]:,.0f}"
    return [*rows, " " * MARGIN + first + last.rjust(columns - len(first))]


def _axes(curves: Sequence[Curve]) -> tuple[Span, Span, bool]:
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    logarithmic = min(ys) > 0 and max(ys) > LOGARITHMIC * min(ys)
    return _span(min(0.0, *xs), max(xs)), _span(min(ys), max(ys)), logarithmic


def _span(low: float, high: float) -> Span:
    """Never empty: a curve may be level, or a single point."""
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _placed(
    points: Points, across: Span, up: Span, logarithmic: bool, columns: int, height: int
) -> list[tuple[int, int]]:
    """Columns and rows that a line through the points goes over."""
    if not points:
        return []
    xs, ys = np.array(points, float).T
    scale = (columns - 1) / (across[1] - across[0])
    first, last = (round((x - across[0]) * scale) for x in (xs[0], xs[-1]))
    found = []
    for column in range(first, last + 1):
        y = float(np.interp(across[0] + column / scale, xs, ys))
        low, high, value = (log10(v) for v in (*up, y)) if logarithmic else (*up, y)
        found.append((column, round((high - value) / (high - low) * (height - 1))))
    return found


def _heights(up: Span, logarithmic: bool, height: int) -> list[float]:
    shares = [row / (height - 1) for row in range(height)]
    if logarithmic:
        return [up[1] * (up[0] / up[1]) ** share for share in shares]
    return [up[1] - share * (up[1] - up[0]) for share in shares]


def curves_svg(curves: Sequence[Curve], title: str, across: str) -> str:
    """With a legend; what is `beside` a curve is faint, and clipped where it leaves the frame."""
    shown = [curve for curve in curves if curve.points or curve.beside]
    main = [curve for curve in shown if curve.points] or [Curve(each.name, each.beside) for each in shown]
    x, y, logarithmic = _axes(main) if main else ((0.0, 1.0), (0.0, 1.0), False)
    tall = 330 + 18 * len(curves)
    panel = Panel(title, 60, 40, 640, 240, x, y, log_y=logarithmic)
    parts = panel.frame(_ticks(x), [each for each in _ticks(y) if y[0] <= each <= y[1]], across)
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        inside = [(at, min(max(value, y[0]), y[1])) for at, value in curve.beside if x[0] <= at <= x[1]]
        parts += panel.line(inside, colour, dots=False, wide=1, faint=True) if len(inside) > 1 else []
        parts += panel.line(curve.points, colour) if curve.points else []
    parts += legend(60, 340, [(curve.name, COLOURS[n % len(COLOURS)]) for n, curve in enumerate(curves)])
    return picture(740, tall + 20, parts)


def _ticks(span: Span) -> list[float]:
    """Four to ten round numbers."""
    size = 10 ** floor(log10(span[1] - span[0]))
    step = next(size * part for part in (0.1, 0.2, 0.5, 1, 2) if (span[1] - span[0]) / (size * part) <= 8)
    return [round(n * step, 12) for n in range(ceil(span[0] / step), floor(span[1] / step) + 1)]
