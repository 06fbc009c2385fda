"""The reference backend: NumPy, any float or complex type. It defines what every other backend must compute."""

from __future__ import annotations

from functools import partial
from typing import Any

from tapeless.backends.execute import Run
from tapeless.ops import OPS
from tapeless.program.call import Call

DEFAULT_PRECISION = "float64"
PRECISIONS = ("float32", "float64", "complex128")


def bind(call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Run]:
    return [partial(getattr(OPS[call.op], call.direction), *arguments, **options)]


def begin() -> list[Run]:
    return []
