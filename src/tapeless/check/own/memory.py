"""Where a tensor lies: its strides, the gaps between its numbers, and the bytes around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tapeless.check.guarded import MARGIN, NAN, with_margins
from tapeless.check.own.harness import as_array, is_tensor
from tapeless.ops.contract import Array

LAYOUTS = ("transposed", "a gap between columns", "a gap between rows", "expanded", "misaligned")
EXPRESSIONS = {
    "transposed": "{0}.mT.contiguous().mT",
    "a gap between columns": "{0}.repeat_interleave(2, -1)[..., ::2]",
    "a gap between rows": "torch.cat([{0}, {0}], -1)[..., :{0}.shape[-1]]",
    "expanded": "{0}[:1].expand_as({0})",
    "misaligned": "torch.cat([{0}.flatten()[:1], {0}.flatten()])[1:].view_as({0})",
    "one number": "{0}.flatten()[0].expand({0}.shape)",
}


@dataclass(frozen=True)
class Placed:
    """A value as a kernel gets it, and the bytes around it."""

    name: str
    given: Any
    whole: Array | None = None  # None on a device other than the CPU
    before: Array | None = None
    mine: Array | None = None  # which of the bytes are its own
    itemsize: int = 1

    def values(self) -> Array:
        return as_float64(self.given)

    def strays(self) -> Iterator[str]:
        """What was written outside of it."""
        if self.whole is None or self.before is None or self.mine is None:
            return
        changed = np.flatnonzero((self.whole != self.before) & ~self.mine)
        if changed.size:
            own = np.flatnonzero(self.mine)
            first, last = (int(own[0]), int(own[-1])) if own.size else (MARGIN, MARGIN)
            after = [int(place) for place in changed if place > last]
            where = (
                f"the first {(after[0] - last - 1) // self.itemsize + 1} past its end"
                if after
                else (
                    f"the first {(first - int(changed[-1]) - 1) // self.itemsize + 1} before its beginning"
                    if changed[-1] < first
                    else "between its elements, which belong to another tensor"
                )
            )
            many = len({int(place) // self.itemsize for place in changed})
            yield (
                f"it writes {'a number' if many == 1 else f'{many:,} numbers'} outside {self.name}, {where}: "
                f"an index runs out of the array"
            )

    def changed(self) -> bool:
        """Whether it was written at all."""
        return self.whole is not None and bool((self.whole != self.before).any())


def as_float64(value: Any) -> Array:
    if is_tensor(value):
        tensor = value.detach()
        value = as_array(tensor.double() if tensor.is_floating_point() else tensor)
    return np.array(value, np.float64)


def takes(layout: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can lie so and not be contiguous."""
    if layout in ("transposed", "a gap between rows"):
        return len(shape) > 1 and min(shape[-2:]) > 1
    if layout == "expanded":
        return len(shape) > 1 and shape[0] > 1
    if layout == "one number":
        return True
    return len(shape) > 0 and shape[-1] > 1


def placed(
    name: str, value: Array, dtype: str, device: Any, layout: str = "", tensor: bool = True, margin: int = NAN
) -> Placed:
    """A copy of a value, between margins. Gaps and margins hold NaN, or a pattern where they must stay as they are."""
    if value.dtype.kind == "f" and dtype:
        size = {"float64": 8, "float32": 4}.get(dtype, 1 if dtype.startswith("float8") else 2)
    else:
        size, margin = value.dtype.itemsize, 0
    shape = value.shape
    room, strides = _strides(layout if takes(layout, shape) else "", shape)
    whole, start = with_margins(room * size, MARGIN, margin)
    offset = 1 if layout == "misaligned" else 0
    if tensor:
        torch = sys.modules["torch"]
        kind = getattr(torch, dtype) if value.dtype.kind == "f" and dtype else torch.from_numpy(value[:0].copy()).dtype
        memory = torch.from_numpy(whole).to(device)
        where = slice(start, start + (room + offset) * size)
        given = memory[where].view(kind).as_strided(shape, strides, (start // size) + offset)
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        given[once].copy_(torch.from_numpy(np.array(value[once])))
        if device is not None and device.type != "cpu":
            return Placed(name, given)
    else:
        kind_np = np.dtype(dtype) if value.dtype.kind == "f" and dtype else value.dtype
        flat = whole[start : start + (room + offset) * size].view(kind_np)
        given = np.lib.stride_tricks.as_strided(flat[offset:], shape, [stride * size for stride in strides])
        given[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)] = value
    mine = np.zeros(whole.size, bool)
    places = np.zeros(1, np.int64)
    for count, stride in zip(shape, strides, strict=True):
        places = (places[:, None] + np.arange(count if stride else 1) * stride).reshape(-1)
    for byte in range(size):
        mine[start + (places + offset) * size + byte] = True
    return Placed(name, given, whole, whole.copy(), mine, size)


def _strides(layout: str, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """How many elements the memory must have, and the strides in it."""
    order = list(range(len(shape)))
    sizes = list(shape)
    if layout == "transposed":
        order[-2:] = order[-1], order[-2]
    elif layout == "a gap between rows":
        sizes[-1] += 3
    elif layout == "a gap between columns":
        sizes[-1] *= 2
    elif layout == "expanded":
        sizes[0] = 1
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(sizes[axis], 1)
    if layout == "a gap between columns":
        strides[-1] = 2
    if layout == "expanded":
        strides[0] = 0
    if layout == "one number":
        return 1, [0] * len(shape)
    return max(prod(sizes), 1), strides
