"""The reference backend: NumPy, any float or complex type. It defines what every other backend must compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tapeless.backends.host import Host, store_rounded
from tapeless.backends.traits import Traits
from tapeless.kernels.native import Native
from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tapeless.program.call import Call


class Reference(Host):
    name = "reference"
    traits = Traits(("float64", "float32", "complex128", "bfloat16"))

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        function = getattr(OPS[call.op], call.direction)
        names = call.signature.arguments
        numbers = {name: arguments[names.index(name)] for name in (a.name for a in call.arguments)}
        numbers = {name: array for name, array in numbers.items() if call.spec.is_number(name)}
        types = {array.dtype for array in numbers.values()}
        if len(types) <= 1 and all(each.kind in "fc" for each in types):
            return [partial(function, *arguments, **options)]
        return [partial(_run_wide, function, call, numbers, arguments, options)]


def _run_wide(
    function: Callable[..., None], call: Call, numbers: dict[str, Array], arguments: list[Any], options: dict[str, Any]
) -> None:
    """In float64, or complex128 where some of it is, what is stored in narrower or in several types, each result
    rounded once, as it is stored: that is what a kernel of these types has to come near to."""
    read = {argument.name for argument in call.reads}
    widest = np.complex128 if any(array.dtype.kind == "c" for array in numbers.values()) else np.float64
    wide = {
        name: array.astype(widest) if name in read else np.empty(array.shape, widest) for name, array in numbers.items()
    }
    given = [wide.get(name, value) for name, value in zip(call.signature.arguments, arguments, strict=False)]
    function(*given, *arguments[len(given) :], **options)
    written = [argument.name for argument in call.writes if argument.name in numbers]
    for name in written:
        store_rounded(numbers[name], wide[name])
    for name, full in call.spec.rounded.items():
        if full in numbers:
            store_rounded(numbers[name], numbers[full])


REFERENCE = Reference()
