"""The CPU backend: MKL's products or our own, Numba for everything else, in float32.

An op's `cpu.py` has the functions of its `reference.py`, with the same arguments. But where those compute, these
*bind*: they decide everything that can be decided (which kernel, how many threads) and return the native calls that
compute the result, each without arguments. Where a kernel needs scratch, `forward_scratch` or `backward_scratch` in the
op's `scratch.py` says for a call (and, where it asks for it, a `precision`) how much of which type, and the binder is
handed the arrays as `scratch`. A plan asks that module alone, for which NumPy suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any, TypeVar

from tapeless.backends.folded import bind_fused, linear_of
from tapeless.backends.host import Host
from tapeless.backends.traits import Traits
from tapeless.errors import TapelessError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.kernels.native import Native, Scratch
from tapeless.lowering.relu import RELU_IN_LINEAR
from tapeless.lowering.rules import NO_RULES, Rules
from tapeless.program.call import Call
from tapeless.program.precision import Precision

T = TypeVar("T")

NUMBA = (0, 62)  # before that, llvmlite knew no opaque pointers


def require_packages() -> None:
    if find_spec("numba") is None:
        raise TapelessError("the cpu backend needs Numba: pip install 'tapeless[cpu]', or take the reference backend.")
    if tuple(map(int, version("numba").split(".")[:2])) < NUMBA:
        raise TapelessError(
            f"the cpu backend needs Numba {NUMBA[0]}.{NUMBA[1]} or later, and this is {version('numba')}: "
            f"pip install --upgrade numba, or take the reference backend."
        )


class Cpu(Host):
    name = "cpu"

    def __init__(self, *, plans: bool = False) -> None:
        """`plans`: it only plans, for any processor, and needs no Numba."""
        self._plans = plans

    @property
    def traits(self) -> Traits:
        return Traits(("float32", "bfloat16") if self._plans or cpu_kernels.has_bfloat16() else ("float32",))

    def scratch(self, call: Call, precision: Precision) -> Sequence[Scratch]:
        if len(call.parts) > 1:
            return self.scratch(linear_of(call.parts), precision)
        needed = getattr(_scratch_of(call.op), f"{call.direction}_scratch", None)
        if needed is None:
            return ()
        found: Sequence[Scratch] = (
            needed(call, precision) if "precision" in signature(needed).parameters else needed(call)
        )
        return found

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        if len(call.parts) > 1:
            return bind_fused(call.parts, arguments, options.get("scratch", ()))
        binder = getattr(cpu_kernels.load(f"tapeless.ops.{call.op}.cpu"), call.direction, None)
        if binder is None:
            raise TapelessError(
                f"{call.op} has no {call.direction} on the cpu backend: write it in ops/{call.op}/cpu.py, "
                f"or take the reference backend."
            )
        natives: list[Native] = binder(*arguments, **options)
        if natives is None:
            raise TapelessError(
                f"{call.direction} in ops/{call.op}/cpu.py returned None: it returns the list of its native calls; is "
                f"there a `return` at its end?"
            )
        return cpu_kernels.small_on_one_thread(natives)

    def bind_all(self, bind: Callable[[], T]) -> T:
        return cpu_kernels.compile_all(bind)

    def rules(self, precision: Precision) -> Rules:
        """Our own GEMMs take ReLU in; MKL's, and those of bfloat16, do not."""
        own = precision.activation == "float32" and cpu_kernels.gemm_library() == "own"
        return Rules(fusions=(RELU_IN_LINEAR,)) if own else NO_RULES

    def capture(self, natives: list[Native]) -> list[Native]:
        ready = partial(cpu_kernels.start_threads, cpu_kernels.threads())
        return [ready, *([cpu_kernels.run_list(natives)] if natives else [])]


@cache
def _scratch_of(op: str) -> ModuleType | None:
    """The module that says what the kernels of an op need, if they need anything. NumPy suffices for it."""
    name = f"tapeless.ops.{op}.scratch"
    return import_module(name) if find_spec(name) else None


CPU, PLANNER = Cpu(), Cpu(plans=True)
