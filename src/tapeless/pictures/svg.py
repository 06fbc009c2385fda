"""Pictures as SVG: panels with two axes, straight or logarithmic, and lines in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
Span = tuple[float, float]
OURS, PEER, OTHER, QUIET = "#0a7", "#e63", "#07c", "#999"


@dataclass(frozen=True)
class Panel:
    """A frame with two axes, and where a point lies in it."""

    title: str
    left: float
    top: float
    width: float
    height: float
    x: Span
    y: Span
    log_x: bool = False
    log_y: bool = False

    def place(self, x: float, y: float) -> tuple[float, float]:
        across, up = _share(x, self.x, self.log_x), _share(y, self.y, self.log_y)
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def frame(self, xticks: Sequence[float], yticks: Sequence[float], across: str) -> list[str]:
        """Axes, with each number written as briefly as it can be."""
        named_x, named_y = ([(tick, f"{tick:g}") for tick in ticks] for ticks in (xticks, yticks))
        return self.named_frame(named_x, named_y, across)

    def named_frame(
        self, xticks: Sequence[tuple[float, str]], yticks: Sequence[tuple[float, str]], across: str
    ) -> list[str]:
        right, bottom = self.left + self.width, self.top + self.height
        parts = [f'<text x="{self.left}" y="{self.top - 12}" font-weight="bold">{escape(self.title)}</text>']
        for tick, name in yticks:
            y = self.place(self.x[0], tick)[1]
            parts.append(f'<line x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
            parts.append(text(self.left - 6, y + 4, name, "end"))
        for tick, name in xticks:
            parts.append(text(self.place(tick, self.y[0])[0], bottom + 16, name, "middle"))
        parts.append(f'<path d="M{self.left} {self.top}V{bottom}H{right}" fill="none" stroke="#666"/>')
        parts.append(text(self.left + self.width / 2, bottom + 33, across, "middle"))
        return parts

    def line(
        self, points: Points, colour: str, dash: str = "", dots: bool = True, wide: float = 1.5, faint: bool = False
    ) -> list[str]:
        placed = [self.place(*point) for point in points]
        path = " ".join(point for point, _ in groupby(f"{x:.1f},{y:.1f}" for x, y in placed))  # in one place: once
        more = ' stroke-opacity="0.4"' if faint else ""
        parts = [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide:g}" '
            f'stroke-dasharray="{dash}"{more}/>'
        ]
        return parts + ([self.dot(point, colour) for point in points] if dots else [])

    def dot(self, point: tuple[float, float], colour: str, radius: float = 2.5) -> str:
        x, y = self.place(*point)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'

    def label(self, point: tuple[float, float], words: str, colour: str) -> str:
        """To the right of a point."""
        x, y = self.place(*point)
        return text(x + 8, y + 4, words, "start", colour)


def _share(value: float, span: Span, logarithmic: bool) -> float:
    first, last = span
    return log(value / first) / log(last / first) if logarithmic else (value - first) / (last - first)


def legend(left: float, top: float, names: Sequence[tuple[str, str]], apart: float = 0.0) -> list[str]:
    """Each name in its colour: beside one another where `apart` is given, else below one another."""
    return [
        text(left + apart * number, top + (0 if apart else 18 * number), name, "start", colour)
        for number, (name, colour) in enumerate(names)
    ]


def text(x: float, y: float, words: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def picture(width: int, height: int, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
