"""A script of a few lines, with PyTorch alone, that shows what was found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.check.own.definition import Expected, taken_by
from tapeless.check.own.example import limits, numbers_text
from tapeless.check.own.memory import EXPRESSIONS
from tapeless.check.own.target import AutogradKernel, Way, leaf_dtype

if TYPE_CHECKING:
    from tapeless.check.own.judge import Problem
    from tapeless.check.own.runner import Bench
    from tapeless.check.own.table import Case

LITERAL = 12  # numbers in an input that are written down as they are


def script_for(bench: Bench, case: Case, problem: Problem, at: Expected) -> str:
    """Empty where the kernel is not one that autograd goes through."""
    kernel, example = bench.kernel, bench.example
    if not isinstance(kernel, AutogradKernel) or example.relate is not None or case.same is not None:
        return ""
    lines = ["import torch", *_import(kernel.source), ""]
    shapes = case.shapes(example)
    way = Way(case.dtype, mixed=case.mixed)
    lines.append(f"g = torch.Generator().manual_seed({case.seed(bench.seed)})")
    widest = max(len(leaf.axes) for leaf in example.leaves if leaf.floats)
    layouts = dict(case.layouts)
    wanted = example.wrt if case.wanted is None else case.wanted
    for index, (leaf, shape) in enumerate(zip(example.leaves, shapes, strict=True)):
        if not leaf.array or shape is None:
            lines.append(f"{leaf.name} = {leaf.value!r}")
            continue
        dtype = leaf_dtype(example, index, way) if leaf.floats else ""
        lines += _drawn(leaf, shape, dtype, case, at.values[index], len(leaf.axes) == widest)
        if leaf.name in layouts:
            lines.append(f"{leaf.name} = {EXPRESSIONS[layouts[leaf.name]].format(leaf.name)}")
        if index in wanted and case.mode != "no_grad":
            lines[-1] += "\n" + f"{leaf.name} = {leaf.name}.detach().requires_grad_()"
    lines += _call(bench, case, problem, at, wanted)
    return "\n".join(lines) + "\n"


def _import(source: Any) -> list[str]:
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", None)
    if name is None and module is None:
        module, name = type(source).__module__, type(source).__qualname__
    if name is None or "<" in name:
        return [f"kernel = ...  # {name or type(source).__name__}"]
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    return [f"from {module} import {name.split('.')[0]}"]


def _drawn(leaf: Any, shape: tuple[int, ...], dtype: str, case: Case, value: Any, main: bool) -> list[str]:
    cast = f".to(torch.{dtype})" if dtype not in ("", "float32") else ""
    if case.numbers == "as given":
        return [f"{leaf.name} = torch.tensor({value.tolist()!r}){cast or ('.float()' if dtype else '')}"]
    if not leaf.floats:
        if leaf.value.dtype.kind == "b":
            return [f"{leaf.name} = torch.empty({shape}).uniform_(0, 1, generator=g) > 0.5"]
        return [f"{leaf.name} = torch.randint({int(leaf.low)}, {int(leaf.high) + 1}, {shape}, generator=g)"]
    low, high = limits(leaf)
    first = f"{leaf.name} = torch.empty({shape}).uniform_({low!r}, {high!r}, generator=g)"
    lines = [first, *numbers_text(case.numbers, leaf, main)]
    if cast:
        lines[-1] = lines[-1] + cast if len(lines) == 1 else lines[-1] + f"\n{leaf.name} = {leaf.name}{cast}"
    return lines


def _call(bench: Bench, case: Case, problem: Problem, at: Expected, wanted: tuple[int, ...]) -> list[str]:
    example, kernel = bench.example, bench.kernel
    assert isinstance(kernel, AutogradKernel)
    names = [leaf.name for leaf in example.leaves]
    arguments = ", ".join(str(_hung(tree, names)) for tree in example.tree)
    keywords = "".join(f", {n}={v!r}" for n, v in taken_by(kernel.source, bench.options(case)).items())
    call = f"{_callable(kernel.source)}({arguments}{keywords})"
    if case.mode == "autocast":
        lines = ["with torch.autocast('cpu', torch.bfloat16):", f"    y = {call}"]
    elif case.mode == "no_grad":
        lines = ["with torch.no_grad():", f"    y = {call}"]
    else:
        lines = [f"y = {call}"]
    several = len(at.dys) > 1
    if problem.name.startswith("y") or not problem.name:
        found = f"y[{problem.name[1:]}]" if several and problem.name[1:] else "y"
        if not problem.name:
            lines += _backward(case, at, [f"{names[i]}" for i in wanted], several, bench)
            return [*lines, f"# {problem.sentence}"]
        return [*lines, *_shown(problem, found)]
    lines += _backward(case, at, [problem.name[1:]], several, bench)
    return [*lines, *_shown(problem, problem.name)]


def _backward(case: Case, at: Expected, sources: list[str], several: bool, bench: Bench) -> list[str]:
    lines, dys = [], []
    for number, dy in enumerate(at.dys):
        name = f"dy{number}" if several else "dy"
        layout = dict(case.layouts).get("dy", "")
        seed = case.seed(bench.seed) + 1 + number
        drawn = f"torch.empty({dy.shape}).uniform_(-2, 2, generator=torch.Generator().manual_seed({seed}))"
        drawn += ".abs()" if case.numbers == "positive" else ""
        drawn += f".to(torch.{case.dtype})" if case.dtype != "float32" else ""
        if layout == "one number":
            drawn = f"torch.ones((), dtype=torch.{case.dtype}).expand({dy.shape})"
        lines.append(f"{name} = {drawn}")
        if layout in EXPRESSIONS and layout != "one number":
            lines.append(f"{name} = {EXPRESSIONS[layout].format(name)}")
        dys.append(name)
    if case.mode == "two forwards":
        lines.append("again = 0  # a second forward, with other numbers, belongs here")
    if case.output is not None:
        call = f"torch.autograd.grad([y[{case.output}]], [{', '.join(sources)}], [{dys[case.output]}]"
    else:
        outputs = "list(y)" if several else "[y]"
        call = f"torch.autograd.grad({outputs}, [{', '.join(sources)}], [{', '.join(dys)}]"
    if case.mode == "second backward of a graph":
        lines.append(f"{call}, retain_graph=True)")
    found = ", ".join(f"d{each}" for each in sources) + ("," if len(sources) == 1 else "")
    return [*lines, f"{found} = {call}, allow_unused=True)"]


def _shown(problem: Problem, name: str) -> list[str]:
    one = problem.compared
    if one is None:
        return [f"# {problem.sentence}"]
    index = "".join(f"[{each}]" for each in one.where)
    true = repr(one.true) if np.isfinite(one.true) else f"float('{one.true}')"
    return [
        f"found = 0.0 if {name} is None else {name}{index}.item()",
        f"print('found', found, 'the definition in float64 says', {true})",
    ]


def _callable(source: Any) -> str:
    name = getattr(source, "__qualname__", None)
    if name is None or "<" in name:
        return "kernel"
    torch = sys.modules["torch"]
    return f"{name}.apply" if isinstance(source, type) and issubclass(source, torch.autograd.Function) else str(name)


def _hung(tree: Any, names: list[str]) -> str:
    if isinstance(tree, int):
        return names[tree]
    inside = ", ".join(_hung(each, names) for each in tree)
    return f"[{inside}]" if isinstance(tree, list) else f"({inside},)"
