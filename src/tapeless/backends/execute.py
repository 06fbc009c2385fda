"""Walking the list. Training, tracing, timing and comparing are plain loops over `execute`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from types import ModuleType

from tapeless.errors import unknown
from tapeless.ops.contract import Array
from tapeless.program.arena import Arena
from tapeless.program.call import Call

Kernel = Callable[..., None]
Bound = tuple[Call, Callable[[], None]]
BACKENDS = ("reference",)


def backend_named(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return import_module(f"tapeless.backends.{name}")


def bind(calls: Iterable[Call], arena: Arena, backend: ModuleType) -> list[Bound]:
    """Resolve each call once: its kernel, its views, its scalars. Running it then looks nothing up."""
    return [(call, _bind_call(call, arena, backend.kernel(call))) for call in calls]


def _bind_call(call: Call, arena: Arena, kernel: Kernel) -> Callable[[], None]:
    values = arguments_of(call, arena)
    positional = [values.get(name) for name in call.signature.arguments]
    scalars = [value for _, value in call.scalars]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    if added:
        return partial(kernel, *positional, *scalars, add=added)
    return partial(kernel, *positional, *scalars)


def arguments_of(call: Call, arena: Arena) -> dict[str, Array]:
    """The arrays of a call by argument name, in the shapes its kernel sees."""
    arrays = {}
    for argument in call.arguments:
        array = arena.array(argument.view)
        shape = call.spec.kernel_shape(argument.name, array.shape)
        arrays[argument.name] = array.reshape(shape, copy=False)
    return arrays


def execute(bound: Iterable[Bound]) -> Iterator[Call]:
    """Run the calls one by one; each is yielded right after it ran, its values readable in the arena."""
    for call, run in bound:
        run()
        yield call
