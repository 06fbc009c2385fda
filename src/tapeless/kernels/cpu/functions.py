"""Functions of machine code that anybody may call by their address: kernels, libraries, threads."""

from __future__ import annotations

from functools import partial
from typing import Any

from numba.core import sigutils
from numba.core.ccallback import CFunc

from tapeless.kernels.cpu.cache import keep_on_disk
from tapeless.kernels.cpu.outline import OPTIONS
from tapeless.kernels.cpu.uninterrupted import uninterrupted


def compiled_function(signature: Any, function: Any) -> Any:
    return uninterrupted(partial(_compiled, signature, function))


def _compiled(signature: Any, function: Any) -> Any:
    form = CFunc(function, sigutils.normalize_signature(signature), {}, OPTIONS)
    keep_on_disk(form, function)
    form.compile()
    return form
