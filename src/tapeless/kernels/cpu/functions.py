"""Functions of machine code that anybody may call by their address: kernels, libraries, threads."""

from __future__ import annotations

from typing import Any

from numba.core import sigutils
from numba.core.ccallback import CFunc

from tapeless.kernels.cpu.cache import keep_on_disk
from tapeless.kernels.cpu.vector import EXACT

OPTIONS: dict[str, Any] = {"fastmath": EXACT, "nogil": True, "error_model": "numpy"}


def compiled_function(signature: Any, function: Any) -> Any:
    form = CFunc(function, sigutils.normalize_signature(signature), {}, OPTIONS)
    keep_on_disk(form, function)
    form.compile()
    return form
