"""The memory that Muon on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels import pieces
from tapeless.kernels.native import Scratch
from tapeless.ops.adamw.scratch import edges_of
from tapeless.ops.muon.reference import each, rest_of
from tapeless.ops.update_scratch import BLOCK


def forward_scratch(call: Any) -> list[Scratch]:
    """Room for the largest matrix twice, for its products with itself twice, and for sums of squares: of every piece
    and matrix, and of a matrix's rows."""
    given = dict(call.scalars)
    edges = (*given["sections"], *edges_of(given["decayed"]))
    rest = pieces.count(rest_of(given["matrices"], call.dims["N"]), BLOCK, edges)
    shapes = [(rows, columns.stop - columns.start) for _, rows, _, columns in each(given["matrices"])]
    largest, side = max((r * c for r, c in shapes), default=0), max(map(min, shapes), default=0) ** 2
    sums = [(2, rest + len(shapes)), (2, max((r for r, _ in shapes), default=0))]
    room = (largest, largest, side, side)
    return [*(Scratch(shape, "float64") for shape in sums), *(Scratch((size,)) for size in room)]
