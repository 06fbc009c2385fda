"""What is said of a float32 kernel: what was tried, what is wrong, where, by how much, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tapeless.check.own.proof import Report
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array
from tapeless.shown import Told

VERDICTS = {
    "right": "right: in float32 the kernel is what its definition says.",
    "wrong": "wrong: the kernel is not what its definition says.",
    "cannot tell": "cannot tell: the kernel agrees with its definition, but whether that is right is not known.",
    "refused": "refused:",
}


@dataclass(frozen=True, repr=False)
class Wrong(Told):
    """One thing that is wrong: by which check, at which case, and the numbers it was seen on."""

    check: str  # "sizes", "adding", "memory", "repeats", "threads", "strides", "range", "NaN", "call", "autograd"
    case: str
    sentence: str
    inputs: tuple[Any, ...] = ()
    dy: tuple[Array, ...] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


@dataclass(frozen=True, repr=False)
class Float32Report(Told):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    verdict: str  # "right", "wrong", "cannot tell" or "refused"
    reason: str  # of a refusal; else empty
    definition: Report | None  # the proof of the definition's own backward, where it has one
    wrong: tuple[Wrong, ...] = ()
    tried: tuple[str, ...] = ()  # what was tried, one line each

    @property
    def ok(self) -> bool:
        """Whether the kernel is right."""
        return self.verdict == "right"

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"{VERDICTS[self.verdict]} {self.reason}".rstrip()]
        if self.definition is not None and not self.definition.ok:
            lines += [
                f"  the definition is {line}" if not at else f"  {line}"
                for at, line in enumerate(str(self.definition).splitlines())
            ]
        for _, group in groupby(sorted(self.wrong, key=_kind), key=_kind):
            first, *others = group
            more = f" ({len(others)} more like it)" if others else ""
            lines += [f"  {first}{more}", f"    again: check.op(…, case={first.case!r})"]
        return "\n".join([*lines, *(f"  {each}" for each in self.tried)])

    def raise_if_wrong(self) -> None:
        """Raise TapelessError, with the whole report, unless the kernel is right."""
        if not self.ok:
            raise TapelessError(str(self))


def _kind(wrong: Wrong) -> tuple[int, str]:
    """Memory first: whatever else is said may come of it."""
    order: Sequence[str] = (
        "call",
        "memory",
        "sizes",
        "adding",
        "repeats",
        "threads",
        "strides",
        "autograd",
        "range",
        "NaN",
    )
    return order.index(wrong.check), wrong.sentence.split(" ", 1)[0]
