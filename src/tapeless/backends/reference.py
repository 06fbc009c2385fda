"""The reference backend: NumPy, any float or complex type. It defines what every other backend must compute."""

from __future__ import annotations

from functools import partial
from typing import Any

from tapeless.backends.host import Host
from tapeless.kernels.native import Native
from tapeless.ops import OPS
from tapeless.program.call import Call


class Reference(Host):
    name = "reference"
    default_precision = "float64"
    precisions = ("float32", "float64", "complex128")

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        return [partial(getattr(OPS[call.op], call.direction), *arguments, **options)]


REFERENCE = Reference()
