"""Walking the list. Training, tracing, timing and comparing are plain loops over `execute`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from tapeless.errors import TapelessError, unknown
from tapeless.kernels.cpu.scratch import taken_from
from tapeless.ops.contract import Array
from tapeless.program.arena import Arena
from tapeless.program.call import Call
from tapeless.program.precision import PRECISIONS, Precision

Run = Callable[[], None]
Bound = tuple[Call, list[Run]]  # a call, and the native calls that compute it, in order
BACKENDS = ("cpu", "reference")


def backend_named(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return import_module(f"tapeless.backends.{name}")


def precision_for(backend: str, name: str | None) -> Precision:
    """The precision a model on this backend has: its own, unless another that it can run is asked for."""
    module = backend_named(backend)
    default: str = module.DEFAULT_PRECISION
    if name is not None and name not in PRECISIONS:
        raise unknown("precision", name, module.PRECISIONS)
    if name is not None and name not in module.PRECISIONS:
        raise TapelessError(
            f"the {backend} backend has no {name}: it runs in {' or '.join(module.PRECISIONS)}; "
            f"take backend='reference'."
        )
    return PRECISIONS[default if name is None else name]


def bind(calls: Iterable[Call], arena: Arena, backend: ModuleType) -> list[Bound]:
    """Resolve each call once: its kernel, its views, its scalars. Running it then looks nothing up."""
    with taken_from(arena.scratch):
        bound = [bind_call(call, arguments_of(call, arena), backend) for call in calls]
    return [(call, [*backend.begin(), *runs] if number == 0 else runs) for number, (call, runs) in enumerate(bound)]


def bind_call(call: Call, arrays: dict[str, Array], backend: ModuleType) -> Bound:
    arguments: list[Any] = [arrays.get(name) for name in call.signature.arguments]
    arguments += [value for _, value in call.scalars]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    return call, backend.bind(call, arguments, {"add": added} if added else {})


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
    for call, runs in bound:
        for run in runs:
            run()
        yield call
