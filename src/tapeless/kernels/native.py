"""Native calls and scratch: what every backend's kernels come down to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Native = Callable[[], None]  # one native call, with everything bound


class Scratch(NamedTuple):
    """An array that a kernel needs while it runs and that is not read afterwards. It holds anything."""

    shape: tuple[int, ...]
    dtype: str = "float32"
