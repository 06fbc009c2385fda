"""Memory of this machine: one aligned block, of which every view is a NumPy array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tapeless.errors import TapelessError
from tapeless.kernels.native import Native, Scratch
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.program.precision import Precision, numpy_type

if TYPE_CHECKING:
    from tapeless.lowering.rules import Rules
    from tapeless.program.arena import Placement

T = TypeVar("T")


def store_rounded(out: Array, values: Array) -> None:
    """Rounded once. NaN stays NaN, also a signalling one, of which NumPy would warn: a file may hold such bits. Of an
    index, for which there is no NaN, it may."""
    with np.errstate(invalid=None if out.dtype.kind in "iu" else "ignore"):
        out[...] = to_be_narrowed(values) if out.dtype.kind == "V" else values


def to_be_narrowed(values: Array) -> Array:
    """For bfloat16, to which the way from float64 leads through float32: that is rounded to odd, and what the second
    rounding sees of the digits below is that there are some."""
    if values.dtype != np.float64:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
    bits = near.view(np.uint32)
    exact = near == values
    above = np.abs(near) > np.abs(values)
    return np.where(exact | ~np.isfinite(near), near, ((bits - above) | np.uint32(1)).view(np.float32))


class Host:
    def allocate(self, size: int) -> Array:
        from tapeless.program.arena import ALIGNMENT

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
        raw = memory[placement.offset : placement.offset + placement.bytes].view(numpy_type(placement.dtype))
        shaped: Array = raw.reshape(placement.buffer.shape)
        return shaped

    def read(self, view: Array) -> Array:
        if view.dtype.kind == "V":  # bfloat16
            widened: Array = view.astype(np.float32)
            return widened
        values = view.view()
        values.flags.writeable = False
        return values

    def write(self, view: Array, values: Any) -> None:
        store_rounded(view, np.asarray(values))

    def read_later(
        self, views: Sequence[Array], disable: tuple[Array, Array] | None = None
    ) -> Callable[[], list[Array]]:
        values = [self.read(view).copy() for view in views]
        if disable is not None:
            number, seen = disable
            number *= np.isfinite(seen) if seen.dtype.kind in "fc" else seen
        return lambda: values

    def scratch(self, call: Call, precision: Precision) -> Sequence[Scratch]:
        return ()

    def bind_all(self, bind: Callable[[], T]) -> T:
        return bind()

    def rules(self, precision: Precision) -> Rules:
        from tapeless.lowering.rules import NO_RULES

        return NO_RULES

    def capture(self, natives: list[Native]) -> list[Native]:
        return natives
