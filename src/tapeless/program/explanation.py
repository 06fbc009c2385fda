"""A training step to be read from top to bottom: what `model.explain()` gives, and `tapeless explain` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice

from tapeless.ops.contract import LEGEND
from tapeless.program.call import Call, Program
from tapeless.program.listing import local_name, results_of, runs_of_sections
from tapeless.shown import Table, aligned, flops, html_table, shape

GROUPS = {
    "forward": ("zero", "forward"),
    "backward": ("recompute", "backward"),
    "update": ("clip", "update"),
}
TITLES = {
    "forward": "from the inputs to the state that is judged",
    "backward": "from the loss to every gradient, in exact reverse (↻ computed again, not kept)",
    "update": "one step down the gradient",
}
SIGNS = "= overwrites, += adds to what is there, ← changes in place"
OF_FUSED = "+ runs with the call above it as one, · is only between these"
FOLDED = 3  # more blocks than this repeat each other: the inner ones stand in one line
Numbered = tuple[int, Call]


@dataclass(frozen=True)
class Stretch:
    """Calls of one section, one after the other; or a line that stands for the blocks between two of them."""

    section: str
    calls: Sequence[Numbered]
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Forward, backward or update."""

    name: str
    calls: Sequence[Numbered]
    stretches: Sequence[Stretch]

    @property
    def title(self) -> str:
        """What it does."""
        return TITLES[self.name]

    @property
    def cost(self) -> str:
        """Of all its calls, those that one line stands for too."""
        return flops(sum(call.flops for _, call in self.calls))


@dataclass(frozen=True)
class Explanation:
    """A training step to be read: `print` it, or leave it at the end of a notebook's cell."""

    name: str
    program: Program
    layer: int | None = None  # of one block alone

    @property
    def heading(self) -> str:
        """How many calls, parameters and FLOPs."""
        program = self.program
        frozen = sum(weight.elements for weight in program.weights if weight.kind == "frozen")
        parameters = f"{program.parameters:,} parameters" + (f" ({frozen:,} frozen)" if frozen else "")
        return f"{len(program.calls)} calls, {parameters}, {flops(program.flops)} a step"

    @property
    def legend(self) -> dict[str, str]:
        """What the letters of its shapes mean."""
        used = {letter for call in self.program.calls for letter in call.dims}
        return {letter: LEGEND[letter] for letter in LEGEND if letter in used}

    @property
    def signs(self) -> str:
        """What the signs mean."""
        return f"{SIGNS}, {OF_FUSED}" if any(len(call.parts) > 1 for call in self.program.calls) else SIGNS

    @property
    def calls(self) -> list[Numbered]:
        """Those that it is about, each with its number."""
        every = enumerate(self.program.calls)
        return [(n, call) for n, call in every if self.layer is None or call.section == f"blocks.{self.layer}"]

    @property
    def groups(self) -> list[Group]:
        """Forward, backward and update, each in stretches."""
        found = []
        for name, phases in GROUPS.items():
            members = [(number, call) for number, call in self.calls if call.phase in phases]
            if members:
                found.append(Group(name, members, self._stretches(members)))
        return found

    def _stretches(self, members: list[Numbered]) -> list[Stretch]:
        runs = runs_of_sections(members)
        blocks = [index for index, (section, _) in enumerate(runs) if section.startswith("blocks.")]
        many = len({runs[index][0] for index in blocks}) > FOLDED
        folded = set(blocks[1:-1]) if self.layer is None and many else set()
        found = []
        for index, (section, calls) in enumerate(runs):
            if index not in folded:
                found.append(Stretch(section, calls))
            elif index - 1 not in folded:
                section_of_last, last = runs[max(folded)]
                found.append(
                    Stretch(
                        section, (), f"{section} … {section_of_last}: calls {calls[0][0]}–{last[-1][0]}, the same again"
                    )
                )
        return found

    def rows(self, calls: Sequence[Numbered]) -> list[tuple[str, ...]]:
        """Number, op, result, sign, formula and shape of every result; number and op stand at a call's first. The parts
        of a fused call stand under each other, with a + before their ops."""
        made: list[tuple[str, ...]] = []
        for number, call in calls:
            for index, part in enumerate(call.parts):
                op = f"{'+ ' if index else ''}{part.op}{' ↻' if part.phase == 'recompute' else ''}"
                head = ("" if index else str(number), op)
                for result in results_of(call, part):
                    name = local_name(result["buffer"], part.section)
                    made.append((*head, name, result["sign"], result["reads_as"], shape(result["shape"])))
                    head = ("", "")
        return made

    def __str__(self) -> str:
        letters = ",  ".join(f"{letter} {meaning}" for letter, meaning in self.legend.items())
        lines = [f"{self.name}  {self.heading}", letters, self.signs]
        for group in self.groups:
            lines += ["", f"{group.name.upper()}  {group.title}  {group.cost}"]
            parts = [self.rows(stretch.calls) for stretch in group.stretches]
            table = iter(aligned(Table((), [row for part in parts for row in part], right=(0, 3, 5))))
            for stretch, part in zip(group.stretches, parts, strict=True):
                lines += [f" {stretch.note or stretch.section}"] if stretch.section else []
                lines += islice(table, len(part))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        letters = ", ".join(f"<strong>{letter}</strong> {escape(text)}" for letter, text in self.legend.items())
        parts = [
            f"<div><strong>{escape(self.name)}</strong> {escape(self.heading)}<br>{letters}<br>{escape(self.signs)}"
        ]
        for group in self.groups:
            title = f"<strong>{group.name.upper()}</strong> {escape(group.title)}"
            parts.append(f'<div style="margin-top:.8em">{title} <span style="opacity:.65">{group.cost}</span></div>')
            for stretch in group.stretches:
                if stretch.note:
                    parts.append(f'<div style="opacity:.65">{escape(stretch.note)}</div>')
                    continue
                made = html_table(Table((), self.rows(stretch.calls), right=(0, 3, 5)))
                summary = escape(stretch.section or group.name)
                parts.append(f"<details open><summary>{summary}</summary>{made}</details>")
        return "".join([*parts, "</div>"])
