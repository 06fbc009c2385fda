"""Functions as Numba compiles them for kernels, kept on disk: called from Python, or from machine code by address."""

from __future__ import annotations

from functools import partial
from typing import Any

import numba

from tapeless.kernels.cpu.cache import keep_on_disk
from tapeless.kernels.cpu.numba_internals import CFunc
from tapeless.kernels.cpu.outline import OPTIONS
from tapeless.kernels.cpu.uninterrupted import uninterrupted


def jitted(function: Any) -> Any:
    """A function to call from Python. Numba compiles it for the types of its arguments."""
    form = numba.njit(**OPTIONS)(function)
    keep_on_disk(form, function)
    return form


def c_function(signature: Any, function: Any) -> Any:
    """A function with C's calling convention, for kernels, libraries and threads that know its address."""
    return uninterrupted(partial(_compiled, signature, function))


def _compiled(signature: Any, function: Any) -> Any:
    form = CFunc(function, (signature.args, signature.return_type), {}, OPTIONS)
    keep_on_disk(form, function)
    form.compile()
    return form
