"""Memory of this machine: one aligned block, of which every view is a NumPy array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.kernels.native import Native, Scratch
from tapeless.ops.contract import Array
from tapeless.program.arena import ALIGNMENT, Placement
from tapeless.program.call import Call


class Host:
    def allocate(self, size: int) -> Array:
        try:
            raw = np.zeros(size + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError, OverflowError):
            raise TapelessError(
                f"this needs {size:,} bytes in one block, which this machine cannot give: "
                f"take a smaller batch, time or model, or recompute=True."
            ) from None
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]

    def view(self, memory: Array, placement: Placement) -> Array:
        raw = memory[placement.offset : placement.offset + placement.bytes]
        return raw.view(placement.dtype).reshape(placement.buffer.shape)

    def read(self, view: Array) -> Array:
        values = view.view()
        values.flags.writeable = False
        return values

    def write(self, view: Array, values: Any) -> None:
        view[...] = values

    def scratch(self, call: Call) -> Sequence[Scratch]:
        return ()

    def begin(self) -> list[Native]:
        return []

    def capture(self, natives: list[Native]) -> list[Native]:
        return natives

    def threads(self, count: int | None = None, *, lower: bool = False) -> int | None:
        return None
