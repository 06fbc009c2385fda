"""A kernel's parallel loop as a function of its own, so that the same machine code runs on one thread and on many.

`for i in prange(n): …` becomes a function that runs the parts from `begin` to `end`, and a call that either runs it on
all parts or hands ranges of them to threads (`pool.py`). What the loop reads from around it is handed over in memory.
The kernel takes one more argument, its last: the number of threads.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any

import llvmlite.ir as ir
import numba
from numba import intp, types
from numba.extending import intrinsic

from tapeless.errors import TapelessError
from tapeless.kernels.cpu.helpers import EXACT, WITHIN
from tapeless.kernels.cpu.numba_internals import Flags, compile_internal

PARALLEL_FOR = "tapeless_parallel_for"  # the symbol under which machine code finds `pool.parallel_for`
OPTIONS: dict[str, Any] = {"fastmath": EXACT, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
PARALLEL, THREADS, BEGIN, END = "tapeless_parallel", "tapeless_threads", "tapeless_begin", "tapeless_end"
WORD, STATUS = ir.IntType(64), ir.IntType(32)


def outlined(function: Callable[..., None]) -> Callable[..., None]:
    """The kernel with its parallel loops outlined."""
    tree = definition(function)
    parts = _outline(tree)
    tree.args.args.append(ast.arg(THREADS))
    module = ast.fix_missing_locations(ast.Module([*parts, tree], []))
    scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals, PARALLEL: run_in_parallel}
    for code in compile(module, function.__code__.co_filename, "exec").co_consts:
        if isinstance(code, CodeType):
            scope[code.co_name] = FunctionType(code, scope, code.co_name)
    for each in (*parts, tree):
        scope[each.name].__qualname__ = f"{function.__qualname__}_{each.name}"
        scope[each.name].__module__ = function.__module__
    for part in parts:
        scope[part.name] = numba.njit(**{**WITHIN, **OPTIONS})(scope[part.name])
    made: Callable[..., None] = scope[tree.name]
    return made


def definition(function: Callable[..., None]) -> ast.FunctionDef:
    """The function's source as a tree whose line numbers are those of its file."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    return bare(tree)


def bare(tree: ast.FunctionDef) -> ast.FunctionDef:
    """A copy without what is said of the types, which the compiler finds out."""
    tree = deepcopy(tree)
    tree.decorator_list, tree.returns = [], None
    for argument in tree.args.args:
        argument.annotation = None
    return tree


def _outline(tree: ast.FunctionDef) -> list[ast.FunctionDef]:
    """Replaces the parallel loops in the tree; returns the functions that they have become."""
    local = {argument.arg for argument in tree.args.args} | _named(tree, ast.Store)
    loops = list(_loops(tree))
    _check(tree, loops)
    parts = []
    for number, loop in enumerate(loops):
        inside = ast.Module([ast.Assign([loop.target], ast.Constant(0)), *loop.body], [])
        taken = sorted((_named(inside, ast.Load) & local) - _named(inside, ast.Store))
        name = f"{tree.name}_part_{number}"
        header = f"def {name}({', '.join((BEGIN, END, *taken))}): pass"
        part, over = ast.parse(header).body[0], ast.parse(f"range({BEGIN}, {END})", mode="eval").body
        assert isinstance(part, ast.FunctionDef)
        part.body = [ast.copy_location(ast.For(loop.target, over, loop.body, []), loop)]
        parts.append(ast.copy_location(part, loop))
        assert isinstance(loop.iter, ast.Call)
        values = ast.Tuple([ast.Name(each, ast.Load()) for each in taken], ast.Load())
        arguments = [ast.Name(name, ast.Load()), loop.iter.args[0], ast.Name(THREADS, ast.Load()), values]
        call = ast.Expr(ast.Call(ast.Name(PARALLEL, ast.Load()), arguments, []))
        _replace(tree, loop, ast.copy_location(call, loop))
    return parts


def _loops(node: ast.AST) -> Iterator[ast.For]:
    """The parallel loops that are not in another one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.For) and isinstance(child.iter, ast.Call) and _is_prange(child.iter.func):
            yield child
        else:
            yield from _loops(child)


def _is_prange(node: ast.expr) -> bool:
    return getattr(node, "id", getattr(node, "attr", None)) == "prange"


def _named(tree: ast.AST, use: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, use)}


def _replace(tree: ast.AST, old: ast.stmt, new: ast.stmt) -> None:
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and old in block:
                block[block.index(old)] = new


def _check(tree: ast.FunctionDef, loops: list[ast.For]) -> None:
    """No part may pass a value to another one, or to what follows the loop: it would depend on who runs it."""
    for loop in loops:
        assert isinstance(loop.iter, ast.Call)
        if len(loop.iter.args) != 1 or any(isinstance(node, ast.Return) for node in ast.walk(loop)):
            raise TapelessError(f"the prange of {tree.name} takes one number, and no part of it returns.")
    of_parts = set().union(*(_named(loop, ast.Store) for loop in loops))
    assigned = {argument.arg for argument in tree.args.args}
    carried = sorted(_Reads(loops).before_assignment(tree.body, assigned) & of_parts)
    if carried:
        raise TapelessError(
            f"{tree.name} sums over the parts of its prange in {carried[0]}, and in which order would depend on the "
            f"threads: let each part write its own sum, and add those up behind the loop."
        )


class _Reads:
    """Which local variables are read where they may not have been assigned. What a parallel loop assigns is unassigned
    when a part begins, and again behind the loop."""

    def __init__(self, loops: list[ast.For]) -> None:
        self._loops = {id(loop) for loop in loops}

    def before_assignment(self, block: list[ast.stmt], assigned: set[str]) -> set[str]:
        """`assigned` is what is assigned for certain, before the block and then behind it."""
        return set().union(*(self._of_statement(each, assigned) for each in block))

    def _of_statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
        if isinstance(node, ast.For):
            return self._of_loop(node, assigned)
        if isinstance(node, ast.If):
            found, other = _named(node.test, ast.Load) - assigned, set(assigned)
            found |= self.before_assignment(node.body, assigned) | self.before_assignment(node.orelse, other)
            assigned &= other
            return found
        if isinstance(node, ast.While):
            test = _named(node.test, ast.Load) - assigned
            return test | self.before_assignment(node.body, set(assigned))
        found = _named(node, ast.Load) - assigned
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found |= {node.target.id} - assigned
        assigned |= _named(node, ast.Store)
        return found

    def _of_loop(self, loop: ast.For, assigned: set[str]) -> set[str]:
        found = _named(loop.iter, ast.Load) - assigned
        for inside in (each for each in ast.walk(loop) if id(each) in self._loops):
            assigned -= _named(inside, ast.Store)
        return found | self.before_assignment(loop.body, assigned | _named(loop.target, ast.Store))


@intrinsic
def run_in_parallel(typing, part, count, threads, values):
    """Run `part(begin, end, *values)` for the parts from 0 to `count`, in ranges on so many threads."""
    dispatcher, kinds = part.dispatcher, (intp, intp, *(types.unliteral(each) for each in values))

    def generate(context, builder, signature, arguments):
        # Compiled into the kernel's own library: by itself it would be optimised and turned into machine code twice.
        flags = Flags()
        dispatcher.targetdescr.options.parse_as_flags(flags, dispatcher.targetoptions)
        flags.no_compile = True
        library = context.active_code_library
        result = compile_internal(typing, context, library, dispatcher.py_func, kinds, types.none, flags, {})
        part = context.declare_function(builder.module, result.fndesc)
        given = [builder.extract_value(arguments[3], number) for number in range(len(values))]
        # Of a part that has failed, the status and where its exception lies; then the values.
        block = ir.LiteralStructType([STATUS, WORD, *(each.type for each in given)])
        run = _range_runner(context, builder.module, part, kinds, block)
        with builder.goto_entry_block():
            memory = builder.alloca(block)
        for number, value in enumerate([STATUS(0), WORD(0), *given]):
            builder.store(value, _field(builder, memory, number))
        first, there = WORD(0), builder.ptrtoint(memory, WORD)
        parts, most = (context.cast(builder, arguments[i], signature.args[i], intp) for i in (1, 2))
        with builder.if_else(builder.icmp_signed(">", most, WORD(1))) as (many, alone):
            with many:
                kind = ir.FunctionType(ir.VoidType(), [WORD] * 4)
                known = builder.module.globals.get(PARALLEL_FOR)
                function = known or ir.Function(builder.module, kind, PARALLEL_FOR)
                builder.call(function, [builder.ptrtoint(run, WORD), there, parts, most])
            with alone:
                builder.call(run, [first, parts, there])
        status = builder.load(_field(builder, memory, 0))
        with builder.if_then(builder.icmp_signed("!=", status, STATUS(0)), likely=False):
            raised = builder.function.args[1]
            exception = builder.load(_field(builder, memory, 1))
            builder.store(builder.inttoptr(exception, raised.type.pointee), raised)
            builder.ret(status)
        return context.get_dummy_value()

    return types.void(part, count, threads, values), generate


def _range_runner(context: Any, module: Any, part: Any, kinds: Any, block: Any) -> Any:
    """(begin, end, where the block lies): a function that a thread can call. It exists once in the machine code, so
    that a part has the same bits whoever runs it."""
    kind = ir.FunctionType(ir.VoidType(), [WORD] * 3)
    function = ir.Function(module, kind, module.get_unique_name("tapeless_range"))
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    begin, end, there = function.args
    memory = builder.inttoptr(there, block.as_pointer())
    values = [builder.load(_field(builder, memory, i)) for i in range(2, len(block.elements))]
    status, _ = context.call_conv.call_function(builder, part, types.none, kinds, [begin, end, *values])
    with builder.if_then(status.is_error, likely=False):
        builder.store(status.code, _field(builder, memory, 0))
        builder.store(builder.ptrtoint(status.excinfoptr, WORD), _field(builder, memory, 1))
    builder.ret_void()
    return function


def _field(builder: Any, memory: Any, number: int) -> Any:
    return builder.gep(memory, [STATUS(0), STATUS(number)])
