"""The small things that go wrong: for each node of a source, the ways in which it is made wrong."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

Change = Callable[[ast.stmt, Any], None]  # done to a copy of a function, at the copy of the node

OTHER_OPERATOR: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
OTHER_COMPARISON: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OTHER_FUNCTION = {
    "min": "max",
    "max": "min",
    "sin": "cos",
    "cos": "sin",
    "write": "add",
    "add": "write",
    "tril": "triu",
    "ones": "zeros",
    "sum": "mean",
    "mean": "sum",
    "largest": "larger",
    "norm_forward": "norm_backward",
}
DROPPED_FUNCTIONS = ("sqrt", "exp", "log", "tanh", "abs", "nearest")
SYMMETRIC = ("min", "max", "larger")
AXES = {0: 1, 1: 0, 2: 1, 3: 2, -1: 0}


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.BinOp):
        yield from _binary(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", lambda tree, n: _replace(tree, n, n.operand)
    elif isinstance(node, ast.Compare):
        yield "comparison", _compare
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node)
    elif isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield "axis", lambda tree, n: _replace(tree, n, n.value)
    elif isinstance(node, ast.IfExp | ast.If):
        yield "condition", _negate_test
    elif isinstance(node, ast.BoolOp):
        yield "condition", _other_logic
    elif isinstance(node, ast.stmt):
        yield from _statement(node)


def _binary(node: ast.BinOp) -> Iterator[tuple[str, Change]]:
    if isinstance(node.op, ast.MatMult):
        yield "arguments", _swap_operands
    elif type(node.op) in OTHER_OPERATOR:
        yield "operator", _other_operator
        if isinstance(node.op, ast.Div | ast.Pow | ast.Mod):
            yield "arguments", _swap_operands
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            yield "term", lambda tree, n: _replace(tree, n, n.left)
            yield "term", lambda tree, n: _replace(tree, n, n.right)


def _constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", _set_value(not value)
    elif isinstance(value, int):
        yield "constant", _set_value(value + 1)
        if value or not getattr(node, "is_index", False):  # of one number, [−1] is [0]
            yield "constant", _set_value(value - 1)
    elif isinstance(value, float):
        yield "constant", _set_value(value * 1.01 if value else 1.0)


def _subscript(node: ast.Subscript) -> Iterator[tuple[str, Change]]:
    """Constants are changed as constants; here what is not one: a row beside, a slice one shorter on either side."""
    for number, part in enumerate(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]):
        part.is_index = True  # type: ignore[attr-defined]
        if isinstance(part, ast.Slice):
            if part.lower is not None and not isinstance(part.lower, ast.Constant):
                yield "index", _shift_slice(number, "lower", 1)
            if part.upper is not None and not isinstance(part.upper, ast.Constant):
                yield "index", _shift_slice(number, "upper", -1)
    if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) > 1:
        yield "index", _swap_indices


def _call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in OTHER_FUNCTION:
        yield ("write and add" if name in ("write", "add") else "function"), _other_function
    if name in DROPPED_FUNCTIONS and len(node.args) == 1:
        yield "function", lambda tree, n: _replace(tree, n, n.args[0])
    if name in ("range", "prange"):
        yield "boundary", _shorter_range
        if len(node.args) > 1:
            yield "boundary", _later_range
    for keyword in node.keywords:
        if keyword.arg == "axis" and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
            yield "axis", _other_axis
    if name == "swapaxes":
        yield "axis", lambda tree, n: _replace(tree, n, n.func.value)
    elif name not in SYMMETRIC:
        for number in range(len(node.args) - 1):
            if _alike(node.args[number], node.args[number + 1]):
                yield "arguments", _swap_arguments(number)
        for number in range(len(node.keywords) - 1):
            if _alike(node.keywords[number].value, node.keywords[number + 1].value):
                yield "arguments", _swap_keywords(number)


def _statement(node: ast.stmt) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.AugAssign):
        yield "assignment", _plain_assignment
        yield "dropped", _drop
        if type(node.op) in OTHER_OPERATOR:
            yield "operator", _other_operator
    elif isinstance(node, ast.Assign):
        stored = isinstance(node.targets[0], ast.Subscript)
        if stored:
            yield "dropped", _drop
        if (stored or isinstance(node.value, ast.BinOp)) and not _is_zero(node.value):
            yield "sign", _negate_value
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield "arguments", _swap_assigned
    elif isinstance(node, ast.Expr):
        yield "dropped", _drop


def _is_zero(value: ast.expr) -> bool:
    """0 or float32(0): minus that is the same."""
    inner = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
    return isinstance(inner, ast.Constant) and inner.value == 0


def _alike(one: ast.expr, two: ast.expr) -> bool:
    """Two arguments that could have been taken for each other: both names, both attributes, or the same call."""
    if isinstance(one, ast.Call) and isinstance(two, ast.Call):
        return ast.unparse(one.func) == ast.unparse(two.func)
    return isinstance(one, ast.Name | ast.Attribute) and isinstance(two, ast.Name | ast.Attribute)


def _replace(tree: ast.stmt, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
                return
            if isinstance(value, list) and any(each is old for each in value):
                value[[each is old for each in value].index(True)] = new
                return
    raise ValueError("the node is not in the tree")


def _drop(tree: ast.stmt, node: ast.stmt) -> None:
    _replace(tree, node, ast.copy_location(ast.Pass(), node))


def _other_operator(tree: ast.stmt, node: Any) -> None:
    node.op = OTHER_OPERATOR[type(node.op)]()


def _swap_operands(tree: ast.stmt, node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


def _compare(tree: ast.stmt, node: ast.Compare) -> None:
    node.ops = [OTHER_COMPARISON[type(op)]() for op in node.ops]


def _set_value(value: object) -> Change:
    def change(tree: ast.stmt, node: ast.Constant) -> None:
        node.value = value  # type: ignore[assignment]

    return change


def _negate_test(tree: ast.stmt, node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _other_logic(tree: ast.stmt, node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _shift_slice(number: int, end: str, by: int) -> Change:
    def change(tree: ast.stmt, node: ast.Subscript) -> None:
        part: Any = node.slice.elts[number] if isinstance(node.slice, ast.Tuple) else node.slice
        setattr(part, end, _plus(getattr(part, end), by))

    return change


def _plus(node: ast.expr, by: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _swap_indices(tree: ast.stmt, node: Any) -> None:
    node.slice.elts[0], node.slice.elts[1] = node.slice.elts[1], node.slice.elts[0]


def _other_function(tree: ast.stmt, node: Any) -> None:
    if isinstance(node.func, ast.Attribute):
        node.func.attr = OTHER_FUNCTION[node.func.attr]
    else:
        node.func.id = OTHER_FUNCTION[node.func.id]


def _shorter_range(tree: ast.stmt, node: ast.Call) -> None:
    last = 0 if len(node.args) == 1 else 1
    node.args[last] = _plus(node.args[last], -1)


def _later_range(tree: ast.stmt, node: ast.Call) -> None:
    node.args[0] = _plus(node.args[0], 1)


def _other_axis(tree: ast.stmt, node: ast.Call) -> None:
    keyword = next(keyword for keyword in node.keywords if keyword.arg == "axis")
    keyword.value = ast.Constant(AXES[ast.literal_eval(keyword.value)])


def _swap_arguments(number: int) -> Change:
    def change(tree: ast.stmt, node: ast.Call) -> None:
        node.args[number], node.args[number + 1] = node.args[number + 1], node.args[number]

    return change


def _swap_keywords(number: int) -> Change:
    def change(tree: ast.stmt, node: ast.Call) -> None:
        one, two = node.keywords[number], node.keywords[number + 1]
        one.value, two.value = two.value, one.value

    return change


def _plain_assignment(tree: ast.stmt, node: ast.AugAssign) -> None:
    """+= becomes =, which for a whole array is [...] = as a kernel would have it."""
    target: Any = node.target
    if isinstance(target, ast.Name):
        target = ast.Subscript(ast.Name(target.id, ast.Load()), ast.Constant(...), ast.Store())
    _replace(tree, node, ast.copy_location(ast.Assign([target], node.value), node))


def _negate_value(tree: ast.stmt, node: ast.Assign) -> None:
    node.value = ast.UnaryOp(ast.USub(), node.value)


def _swap_assigned(tree: ast.stmt, node: Any) -> None:
    elements = node.value.elts
    elements[0], elements[1] = elements[1], elements[0]
