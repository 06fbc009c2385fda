"""Putting a mutant into a running process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tools.mutants.make import Mutant


def inject(mutant: Mutant) -> None:
    """The mutated source runs in its module's namespace. Functions and classes stay the objects they were, with new
    code in them: whoever imported one by name, or has it as a parameter, runs the mutant too."""
    module = import_module(mutant.module)
    before = {name: value for name, value in vars(module).items() if _is_own(module, value)}
    code = compile(mutant.tree, str(module.__file__), "exec")
    _source_of(module, mutant.tree)
    if mutant.file.endswith("cpu.py"):
        touched = _touched(mutant.function, code)
        _compile_afresh(lambda name: mutant.function == "(module)" or name in touched)
    exec(code, vars(module))
    for name, old in before.items():
        _take_code(old, vars(module)[name])
        setattr(module, name, old)


def _source_of(module: ModuleType, tree: Any) -> None:
    """Kernels are made from their source, of which the mutant is another one."""
    from tapeless.kernels.cpu import outline

    written = outline.definition

    def mutated(function: Any) -> Any:
        if function.__module__ != module.__name__:
            return written(function)
        return outline.bare(next(each for each in tree.body if getattr(each, "name", "") == function.__name__))

    outline.definition = mutated


def _take_code(old: Any, new: Any) -> None:
    if isinstance(old, FunctionType):
        old.__code__ = new.__code__
    elif isinstance(old, property):
        _take_code(old.fget, new.fget)
    elif isinstance(old, cached_property):
        _take_code(old.func, new.func)
    elif isinstance(old, type):
        for name, method in vars(old).items():
            if isinstance(method, FunctionType | property | cached_property):
                _take_code(method, vars(new)[name])


def check_indices() -> None:
    """From here on kernels are compiled with every index checked, as tests/kernels/test_bounds.py has them. Not by way
    of Numba's cache, which does not tell the two apart."""
    from tapeless.kernels.cpu.numba_internals import config

    config.BOUNDSCHECK = 1
    _compile_afresh(lambda name: True)


def _is_own(module: ModuleType, value: Any) -> bool:
    return isinstance(value, FunctionType | type) and value.__module__ == module.__name__


def _touched(function: str, code: CodeType) -> set[str]:
    """The functions of a module in which one of them has a part."""
    uses = {part.co_name: set(part.co_names) for part in code.co_consts if isinstance(part, CodeType)}
    touched = {function}
    while more := {name for name, used in uses.items() if used & touched} - touched:
        touched |= more
    return touched


def _compile_afresh(concerned: Callable[[str], bool]) -> None:
    """These kernels are not taken from Numba's cache, nor put there."""
    from tapeless.kernels.cpu import Kernel
    from tapeless.kernels.cpu.numba_internals import NullCache

    form_of = Kernel._made

    def form_afresh(kernel: Kernel) -> Any:
        form = form_of(kernel)
        if concerned(kernel.function.__name__):
            form._cache = NullCache()
        return form

    Kernel._made = form_afresh  # type: ignore[assignment, method-assign]
