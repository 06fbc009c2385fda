"""Putting a mutant into a running process."""

from __future__ import annotations

from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tools.mutants.make import Mutant


def inject(mutant: Mutant) -> None:
    """The mutated source runs in its module's namespace. Functions stay the objects they were, with new code in them:
    whoever imported one by name, or has it as a parameter, runs the mutant too."""
    module = import_module(mutant.module)
    before = {name: value for name, value in vars(module).items() if _is_own(module, value)}
    code = compile(mutant.tree, str(module.__file__), "exec")
    if mutant.file.endswith("cpu.py"):
        _compile_afresh(mutant.function, code)
    exec(code, vars(module))
    for name, old in before.items():
        if isinstance(old, FunctionType):
            old.__code__ = vars(module)[name].__code__
        setattr(module, name, old)


def _is_own(module: ModuleType, value: Any) -> bool:
    return isinstance(value, FunctionType | type) and value.__module__ == module.__name__


def _compile_afresh(function: str, code: CodeType) -> None:
    """Kernels in which the mutated function has a part are not taken from Numba's cache, nor put there."""
    from numba.core.caching import NullCache

    from tapeless.backends import compile as compiler

    uses = {part.co_name: set(part.co_names) for part in code.co_consts if isinstance(part, CodeType)}
    touched = {function}
    while more := {name for name, used in uses.items() if used & touched} - touched:
        touched |= more
    everything = function == "(module)"

    class Afresh(compiler.Kernel):
        def _form(self, parallel: bool) -> Any:
            form = super()._form(parallel)
            if everything or self._function.__name__ in touched:
                form._cache = NullCache()
            return form

    compiler.Kernel = Afresh  # type: ignore[misc]
