"""Mutants: the sources of the mathematics, each with one small thing wrong.

What is mutated are the functions that compute: forwards, backwards and what they are made of, in the reference and in
the cpu kernels, how these divide their work and what memory they ask for, the functions of models/ that write the calls
down, for training and for decoding, the functions and methods of program/ by which the verifier proves the wiring, and
the rules and the proof of lowering. Not mutated are Specs, FLOP counts, examples, refusals, the declarations of buffers
(their shapes are checked where they are used), and sizes of blocks at the top of a file, which decide how fast a kernel
is and not what it yields.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from zlib import crc32

from tools.mutants.changes import changes

SOURCES = (
    "ops/*/reference.py",
    "ops/*/cpu.py",
    "ops/*/scratch.py",
    "kernels/cpu/division.py",
    "kernels/cpu/sizes.py",
    "lowering/*.py",
    "models/parts/*.py",
    "models/blocks.py",
    "models/transformer.py",
    "models/adapters.py",
    "models/decoding.py",
    "program/columns.py",
    "program/values.py",
    "program/adjoints.py",
    "program/verify.py",
)
SHARE, CPU_SHARE = 5, 120  # one in so many; those of a kernel must each be compiled
LEFT_ALONE = ("flops", "pairs", "example", "_refuse", "refuse")  # and what declares buffers
CONTEXT = 30  # characters of a statement that are shown around what is wrong with it


@dataclass(frozen=True)
class Mutant:
    file: str  # below the package, like ops/linear/cpu.py
    function: str
    kind: str
    line: int
    before: str  # the statement
    after: str
    number: int  # of those with the same description, in the order in which they stand in the file
    tree: ast.Module

    @property
    def description(self) -> str:
        return f"{self.file} {self.function}: {self.before} → {self.after} #{self.number}"

    @property
    def name(self) -> str:
        """Stable as long as the statement is: no line numbers."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.file} {self.function}: {' → '.join(shortened(self.before, self.after))}{again}"

    @property
    def module(self) -> str:
        return "tapeless." + self.file.removesuffix(".py").replace("/", ".")


def all_mutants(package: Path) -> Iterator[Mutant]:
    for pattern in SOURCES:
        for path in sorted(package.glob(pattern)):
            yield from mutants_of(path.read_text(), str(path.relative_to(package)))


def mutants_of(source: str, file: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    names: Counter[str] = Counter()
    for top, function, put in _parts(tree):
        for mutated, statement, kind in _mutated(_alone(source, top)):
            before, after = _headline(statement), _headline(_statement_at(mutated, statement))
            described = f"{function}: {shortened(before, after)}"
            names[described] += 1
            module = ast.Module(put(mutated), [])
            yield Mutant(file, function, kind, statement.lineno, before, after, names[described], module)


def _parts(tree: ast.Module) -> Iterator[tuple[ast.stmt, str, Callable[[ast.stmt], list[ast.stmt]]]]:
    """Everything that is mutated by itself, its name, and the module with something else in its place: functions,
    methods, and statements of the module."""
    for place, top in enumerate(tree.body):

        def beside(new: ast.stmt, place: int = place) -> list[ast.stmt]:
            return [*tree.body[:place], new, *tree.body[place + 1 :]]

        if not isinstance(top, ast.ClassDef):
            yield top, top.name if isinstance(top, ast.FunctionDef) else "(module)", beside
            continue
        for inside, method in enumerate(top.body):
            if isinstance(method, ast.FunctionDef):

                def within(new: ast.stmt, owner: ast.ClassDef = top, inside: int = inside) -> list[ast.stmt]:
                    changed = copy(owner)
                    changed.body = [*owner.body[:inside], new, *owner.body[inside + 1 :]]
                    return beside(changed)

                yield method, f"{top.name}.{method.name}", within


def _alone(source: str, top: ast.stmt) -> str:
    """The source of one function, or method, on the lines on which it stands."""
    decorators = top.decorator_list if isinstance(top, ast.FunctionDef) else []
    first = min([top.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n" * (first - 1) + dedent("\n".join(source.splitlines()[first - 1 : top.end_lineno]))


def _mutated(source: str) -> Iterator[tuple[ast.stmt, ast.stmt, str]]:
    """Each way to make one function wrong: the wrong function, the statement as it was, and the kind of mistake."""
    (top,) = ast.parse(source).body
    seen = {ast.dump(top)}
    owners = _owners(top)
    for index, node in enumerate(ast.walk(top)):
        for kind, change in changes(node) if node in owners else ():
            (copy,) = ast.parse(source).body  # faster than copying it
            change(copy, list(ast.walk(copy))[index])
            ast.fix_missing_locations(copy)
            dump = ast.dump(copy)
            if dump not in seen:
                seen.add(dump)
                yield copy, owners[node], kind


def _owners(top: ast.stmt) -> dict[ast.AST, ast.stmt]:
    """Every node that is computed with, and the smallest statement around it."""
    owners: dict[ast.AST, ast.stmt] = {}

    def visit(node: ast.AST, statement: ast.stmt) -> None:
        statement = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, ast.Raise) or _is_docstring(node):
            return
        owners[node] = statement
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, statement)

    if isinstance(top, ast.FunctionDef) and not top.name.startswith((*LEFT_ALONE, "declare")):
        for statement in top.body:
            visit(statement, statement)
    elif isinstance(top, ast.Assign) and _is_real(top.value):
        visit(top.value, top)
    return owners


def _is_real(value: ast.expr) -> bool:
    """A constant of the formulas, like √(2/π): it holds a fraction or a root, which no size of a block does."""
    inside = list(ast.walk(value))
    if any(isinstance(node, ast.Call) and ast.unparse(node.func) in ("Spec", "Kernel") for node in inside):
        return False
    real = any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in inside)
    return real or any(isinstance(node, ast.Name) and node.id == "sqrt" for node in inside)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statement_at(tree: ast.stmt, like: ast.stmt) -> ast.stmt | None:
    """What stands in the mutant where this statement stood."""
    place = (like.lineno, like.col_offset)
    return next((n for n in ast.walk(tree) if isinstance(n, ast.stmt) and (n.lineno, n.col_offset) == place), None)


def _headline(statement: ast.stmt | None) -> str:
    if statement is None or isinstance(statement, ast.Pass):
        return "(nothing)"
    return ast.unparse(statement).splitlines()[0]


def sampled(mutants: list[Mutant]) -> list[Mutant]:
    """A share of them, picked by name: the same ones every time, and from every file."""
    return [
        m for m in mutants if crc32(m.description.encode()) % (CPU_SHARE if m.file.endswith("cpu.py") else SHARE) == 0
    ]


def shortened(before: str, after: str) -> tuple[str, str]:
    """Two versions of a statement, cut down to where they differ."""
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    return _cut(before, start, len(before) - end), _cut(after, start, len(after) - end)


def _alike(one: str, two: str) -> int:
    """How many characters they have in common from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _cut(text: str, start: int, stop: int) -> str:
    first, last = max(0, start - CONTEXT), min(len(text), stop + CONTEXT)
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")
