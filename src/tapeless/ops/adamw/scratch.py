"""The memory that AdamW on the CPU needs while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapeless.kernels.native import Scratch
from tapeless.ops.update_scratch import piece_sums


def forward_scratch(call: Any) -> list[Scratch]:
    return piece_sums(call, *edges_of(dict(call.scalars)["decayed"]))


def edges_of(decayed: Sequence[tuple[int, int]]) -> list[int]:
    return [edge for span in decayed for edge in span]
