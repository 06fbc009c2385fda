"""A list of native calls as one call: a loop in machine code over functions and their arguments.

Called from Python, a kernel costs about a microsecond before it begins, which is what a small model's kernels take.
Here its arguments lie in a block, one word each, as Numba's calling convention has them, and a trampoline for functions
of this kind loads them. The functions are those that Python calls, so the numbers are the same to the last bit.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache, partial
from typing import Any, NamedTuple, cast

import llvmlite.ir as ir
import numpy as np
from numba import types

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.compile import BoundKernel
from tapeless.kernels.cpu.numba_internals import RETCODE_NONE, RETCODE_OK, cpu_target, global_compiler_lock
from tapeless.kernels.cpu.uninterrupted import uninterrupted
from tapeless.kernels.native import Native

SINGLE_RUNS = 2  # times that a list runs call by call: a model that only lives for one step is not worth a loop
MOST_FLOPS = 1_000_000_000  # of a list's GEMMs: beyond, time goes into them, and an interrupt must not wait
POINTER, WORD, STATUS = ir.PointerType(), ir.IntType(64), ir.IntType(32)
FROM_C = {
    ctypes.c_int64: WORD,
    ctypes.c_uint64: WORD,
    ctypes.c_void_p: WORD,
    ctypes.c_int: STATUS,
    ctypes.c_float: ir.FloatType(),
}


class Entry(NamedTuple):
    """A function, how it is called, and the words of its arguments."""

    address: int
    kinds: tuple[Any, ...]
    from_numba: bool
    words: list[int]


class CallList:
    """Native calls that run in this order. Those that a loop cannot call run singly, between those that it can."""

    def __init__(self, natives: list[Native]) -> None:
        self._natives, self._runs, self._seen = natives, natives, 0
        self._stays = sum(map(_flops, natives)) > MOST_FLOPS

    def __call__(self) -> None:
        if self._seen == SINGLE_RUNS and not self._stays:
            self._runs = uninterrupted(partial(as_one_call, self._natives))
        self._seen += 1
        for run in self._runs:
            run()


def _flops(native: Native) -> int:
    return native.flops if isinstance(native, dispatch.Gemm) else 0


def as_one_call(natives: list[Native]) -> list[Native]:
    found: list[Native] = []
    waiting: list[tuple[Native, Entry]] = []
    for native in natives:
        entry = _entry(native)
        if entry is not None:
            waiting.append((native, entry))
            continue
        found += [*_looped(waiting), native]
        waiting = []
    return [*found, *_looped(waiting)]


def _looped(waiting: list[tuple[Native, Entry]]) -> list[Native]:
    if len(waiting) < 2:
        return [native for native, _ in waiting]
    natives, entries = [native for native, _ in waiting], [entry for _, entry in waiting]
    trampolines = _trampolines(entries)
    blocks = np.array([word for entry in entries for word in (entry.address, *entry.words)], np.int64)
    table = np.empty((len(entries), 2), np.int64)
    at = blocks.ctypes.data
    for row, entry in zip(table, entries, strict=True):
        row[:] = trampolines[entry.kinds, entry.from_numba], at
        at += 8 * (1 + len(entry.words))
    with global_compiler_lock:
        loop = _loop()
    return [partial(_run, loop, table, blocks, natives)]


def _run(loop: Any, table: Any, blocks: Any, natives: list[Native]) -> None:
    failed = loop(table.ctypes.data, len(table))
    if failed >= 0:
        natives[failed]()  # whose exception only Python's way of calling it can raise
        raise TapelessError(f"native call {failed} of {len(natives)} failed once and then did not: {natives[failed]}.")


def _entry(native: Native) -> Entry | None:
    while isinstance(native, partial) and not native.args and not isinstance(native, BoundKernel):
        native = native.func
    if isinstance(native, BoundKernel):
        return _of_numba(native)
    if not isinstance(native, partial) or not hasattr(native.func, "argtypes"):
        return None
    kinds = tuple(FROM_C.get(type(value)) for value in native.args)
    if None in kinds:
        return None
    address = ctypes.cast(cast(Any, native.func), ctypes.c_void_p).value or 0
    return Entry(address, kinds, False, [_word(value.value or 0) for value in native.args])


def _of_numba(native: BoundKernel) -> Entry | None:
    result = native.result
    kinds = tuple(result.target_context.call_conv.get_function_type(types.none, result.signature.args).args[2:])
    words: list[int] = []
    for kind, value in zip(result.signature.args, native.args, strict=True):
        if isinstance(kind, types.Array):
            words += [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]
        elif isinstance(kind, types.NoneType):
            words.append(0)
        elif isinstance(kind, types.Integer | types.Boolean):
            words.append(int(value))
        elif kind == types.float64:
            words.append(struct.unpack("<q", struct.pack("<d", value))[0])
        else:
            return None
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return Entry(address, kinds, True, words) if address and len(words) == len(kinds) else None


def _word(value: Any) -> int:
    packed = struct.pack("<fxxxx", value) if isinstance(value, float) else struct.pack("<Q", value % (1 << 64))
    found: int = struct.unpack("<q", packed)[0]
    return found


_made: dict[tuple[tuple[Any, ...], bool], int] = {}


def _trampolines(entries: list[Entry]) -> dict[tuple[tuple[Any, ...], bool], int]:
    """Of every kind that these need, where the function lies that takes a block. One thread at a time: names are
    counted, and two functions of one name would be taken for each other."""
    with global_compiler_lock:
        missing = list(dict.fromkeys((entry.kinds, entry.from_numba) for entry in entries if _is_new(entry)))
        if missing:
            library = cpu_target.target_context.codegen().create_library("tapeless.listed")
            module = library.create_ir_module("tapeless.listed")
            names = [_trampoline(module, len(_made) + number, *kind) for number, kind in enumerate(missing)]
            library.add_ir_module(module)
            library.finalize()
            _kept.append(library)
            for kind, name in zip(missing, names, strict=True):
                _made[kind] = library.get_pointer_to_function(name)
        return dict(_made)


_kept: list[Any] = []  # what is compiled is there as long as its library


def _is_new(entry: Entry) -> bool:
    return (entry.kinds, entry.from_numba) not in _made


def _trampoline(module: Any, number: int, kinds: tuple[Any, ...], from_numba: bool) -> str:
    name = f"tapeless_trampoline_{number}"
    function = ir.Function(module, ir.FunctionType(STATUS, [POINTER]), name)
    builder = ir.IRBuilder(function.append_basic_block())
    block = function.args[0]
    places = [builder.gep(block, [ir.Constant(WORD, i)], source_etype=WORD) for i in range(1 + len(kinds))]
    called = builder.load(block, typ=WORD)
    values = [builder.load(place, typ=kind) for place, kind in zip(places[1:], kinds, strict=True)]
    if from_numba:
        # For a result, and for what was raised: a null in a word, since older llvmlite cannot spell a pointer to one.
        words = [builder.alloca(WORD) for _ in range(2)]
        for word in words:
            builder.store(ir.Constant(WORD, 0), word)
        beside = [builder.bitcast(word, POINTER) for word in words]
        signature = ir.FunctionType(STATUS, [POINTER, POINTER, *kinds])
        status = builder.call(builder.inttoptr(called, signature.as_pointer()), beside + values)
        fine = [builder.icmp_signed("==", status, code) for code in (RETCODE_OK, RETCODE_NONE)]
        builder.ret(builder.select(builder.or_(*fine), ir.Constant(STATUS, 0), ir.Constant(STATUS, 1)))
    else:
        signature = ir.FunctionType(ir.VoidType(), list(kinds))
        builder.call(builder.inttoptr(called, signature.as_pointer()), values)
        builder.ret(ir.Constant(STATUS, 0))
    return name


@cache
def _loop() -> Any:
    """(table, count) → the number of the first that failed, or −1. Python's other threads go on meanwhile. The
    caller holds the compiler's lock."""
    library = cpu_target.target_context.codegen().create_library("tapeless.loop")
    module = library.create_ir_module("tapeless.loop")
    function = ir.Function(module, ir.FunctionType(WORD, [POINTER, WORD]), "tapeless_loop")
    table, count = function.args
    begin, step, good, bad = (function.append_basic_block(name) for name in ("begin", "step", "good", "bad"))
    builder = ir.IRBuilder(begin)
    builder.branch(step)
    builder.position_at_end(step)
    at = builder.phi(WORD)
    at.add_incoming(ir.Constant(WORD, 0), begin)
    row = builder.gep(table, [builder.mul(at, ir.Constant(WORD, 2))], source_etype=WORD)
    trampoline = builder.inttoptr(builder.load(row, typ=WORD), ir.FunctionType(STATUS, [POINTER]).as_pointer())
    block = builder.load(builder.gep(row, [ir.Constant(WORD, 1)], source_etype=WORD), typ=POINTER)
    status = builder.call(trampoline, [block])
    following = builder.add(at, ir.Constant(WORD, 1))
    go_on = builder.icmp_signed("==", status, ir.Constant(STATUS, 0))
    builder.cbranch(go_on, good, bad)
    builder.position_at_end(good)
    at.add_incoming(following, good)
    over = builder.icmp_signed(">=", following, count)
    last = function.append_basic_block("last")
    builder.cbranch(over, last, step)
    builder.position_at_end(last)
    builder.ret(ir.Constant(WORD, -1))
    builder.position_at_end(bad)
    builder.ret(at)
    library.add_ir_module(module)
    library.finalize()
    _kept.append(library)
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return signature(library.get_pointer_to_function("tapeless_loop"))
