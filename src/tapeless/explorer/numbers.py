"""The numbers of an array, as a page shows them: a corner, and how all of them are spread."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from tapeless.ops.contract import Array

CORNER = (4, 5)  # rows and columns of an array that are written out
BINS = 41


def told(name: str, mode: str, buffer: str, values: Array) -> dict[str, Any]:
    """An argument of a call; of what it writes also the spread."""
    flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[None]
    corner = [[_number(value) for value in row[: CORNER[1]].tolist()] for row in flat[: CORNER[0]]]
    found = {
        "name": name,
        "mode": mode,
        "buffer": buffer,
        "shape": list(values.shape),
        "corner": corner,
        "rows": len(flat),
        "columns": flat.shape[1],
    }
    return found | ({"spread": spread(values)} if mode != "read" and values.dtype.kind == "f" else {})


def spread(values: Array) -> dict[str, Any]:
    """A histogram, symmetric around zero, of what is finite."""
    sound = values[np.isfinite(values)].astype(np.float64)
    most = float(np.abs(sound).max(initial=0.0))
    counts, _ = np.histogram(sound, BINS, (-most, most) if most else (-1.0, 1.0))
    zeros, wrong = int(np.count_nonzero(sound == 0)), int(values.size - sound.size)
    return {"most": most, "counts": counts.tolist(), "zeros": zeros, "wrong": wrong}


def _number(value: Any) -> Any:
    return value if isinstance(value, int) else finite(value)


def finite(value: float) -> float | None:
    return value if isfinite(value) else None
