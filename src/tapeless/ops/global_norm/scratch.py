"""The memory that the global norm on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.native import Scratch
from tapeless.ops.update_scratch import count_pieces


def forward_scratch(call: Any) -> list[Scratch]:
    """The sum of every piece."""
    return [Scratch((count_pieces(call),), "float64")]
