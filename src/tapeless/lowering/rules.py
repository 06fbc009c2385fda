"""What a backend asks of lowering: which groups of calls it can run as one, and whether inputs may be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapeless.program.call import Call
from tapeless.program.lowered import Over


def _nothing_over(parts: Sequence[Call]) -> Over:
    return ()


class Fusion(NamedTuple):
    """A rule that fuses calls that follow one another."""

    name: str
    match: Callable[[Sequence[Call], int], int | None]  # of a list, the call after the group that begins at a number
    over: Callable[[Sequence[Call]], Over] = _nothing_over  # what its parts may write over what they read


class Rules(NamedTuple):
    """`omits`: inputs that are not given are left out of the calls that may do without."""

    fusions: tuple[Fusion, ...] = ()
    omits: bool = False


NO_RULES = Rules()
