"""Which blocks of the CUDA backend's kernels Triton's interpreter has run: the body of each kernel and of its loops,
and both sides of its conditions, nearly all of which are decided when a kernel is compiled."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path
from typing import Any

import tapeless

SOURCE = Path(tapeless.__file__).parent
PROBE = "tapeless_block_ran"


class Blocks(ast.NodeTransformer):
    """Puts a call that notes its name at the beginning of each block; of an `if` without `else`, there too."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self.found: list[str] = []

    def _noted(self, what: str) -> ast.Call:
        name = f"{self._kernel}: {what}"
        self.found.append(name)
        return ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(name)], [])

    def _begun(self, what: str, body: list[ast.stmt]) -> list[ast.stmt]:
        return [ast.Expr(self._noted(what)), *body]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        node.body = self._begun("runs", node.body)
        return node

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        node.body = self._begun(f"for {ast.unparse(node.target)}", node.body)
        return node

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        node.body = self._begun("while", node.body)
        return node

    def visit_If(self, node: ast.If) -> Any:
        asked = ast.unparse(node.test)
        self.generic_visit(node)
        node.body, node.orelse = self._begun(f"if {asked}", node.body), self._begun(f"if not {asked}", node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        asked = ast.unparse(node.test)
        self.generic_visit(node)
        for side, what in (("body", f"{asked} ?"), ("orelse", f"not {asked} ?")):
            setattr(node, side, ast.BoolOp(ast.Or(), [self._noted(what), getattr(node, side)]))
        return node


def all_blocks() -> set[str]:
    """Those of every `@triton.jit` function in the package."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(each) == "triton.jit" for each in node.decorator_list
            ):
                blocks = Blocks(f"{module}.{node.name}")
                blocks.visit(node)
                found |= set(blocks.found)
    return found


def noted() -> set[str]:
    """From here on, what Triton's interpreter rewrites to run it notes each of its blocks that runs, in this set."""
    from triton.runtime.interpreter import FunctionRewriter

    ran: set[str] = set()
    setattr(builtins, PROBE, ran.add)
    transform = FunctionRewriter._transform_ast

    def transformed(rewriter: Any, source: str) -> Any:
        function = rewriter.fn
        rewriter.ast_transformer = Both(Blocks(f"{function.__module__}.{function.__name__}"), rewriter.ast_transformer)
        return transform(rewriter, source)

    FunctionRewriter._transform_ast = transformed
    return ran


class Both:
    def __init__(self, first: ast.NodeTransformer, second: ast.NodeTransformer) -> None:
        self._first, self._second = first, second

    def visit(self, node: ast.AST) -> Any:
        return self._second.visit(self._first.visit(node))
