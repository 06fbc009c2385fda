"""Functions that are compiled as a part of the kernels that call them, and never by themselves.

Numba optimises each function that it compiles and makes machine code of it, also where it is inlined wherever it is
called. Most of the time that a kernel took to compile went into machine code of its helpers that nobody called.
"""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu.numba_internals import Compiler, JITCodeLibrary, _dynfunc

EXACT = {"contract"}  # the compiler may fuse a multiplication with an addition, and reorder nothing
WITHIN = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # of functions that machine code alone calls


class Intermediate(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's code of a helper, which is linked into kernels and optimised there."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class HelperCompiler(Compiler):  # type: ignore[misc]
    def __init__(self, typing: Any, target: Any, library: Any, *options: Any) -> None:
        super().__init__(typing, target, library or Intermediate(target.codegen(), "helper"), *options)
        self.state.targetctx.get_executable = _without_machine_code


def _without_machine_code(library: Any, description: Any, environment: Any) -> Any:
    """What stands for the helper in Numba's tables: a function that Python cannot call."""
    name = description.qualname.split(".")[-1]
    return _dynfunc.make_function(description.lookup_module(), name, name, 0, environment, (library,))


HELPER: dict[str, Any] = {"forceinline": True, "pipeline_class": HelperCompiler, **WITHIN}
