"""The memory that updates on the CPU need while they run: sums of the pieces that they are cut into."""

from __future__ import annotations

from typing import Any

from tapeless.kernels import pieces
from tapeless.kernels.native import Scratch

BLOCK = 65536  # elements of a piece, at most


def count_pieces(call: Any, *edges: int) -> int:
    return pieces.count([(0, call.dims["N"])], BLOCK, (*dict(call.scalars)["sections"], *edges))


def piece_sums(call: Any, *edges: int) -> list[Scratch]:
    """The scratch of an update: how far each piece was moved, and how large it was."""
    return [Scratch((2, count_pieces(call, *edges)), "float64")]
