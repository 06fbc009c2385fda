"""What a backend is: it owns a kind of memory, and binds calls to the native calls that compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tapeless.backends import gpu
from tapeless.backends.traits import Traits
from tapeless.errors import NotYetError, TapelessError, unknown
from tapeless.kernels.native import Native, Scratch
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.program.precision import PRECISIONS, Precision

if TYPE_CHECKING:
    from tapeless.lowering.rules import Rules
    from tapeless.program.arena import Placement

T = TypeVar("T")

BACKENDS = ("cpu", "cuda", "reference")
AUTO = "auto"  # cuda where there is a GPU, else cpu


class Backend(Protocol):
    """Memory and views are the backend's own; only `read` and `write` speak NumPy."""

    @property
    def name(self) -> str: ...
    @property
    def traits(self) -> Traits: ...

    def allocate(self, size: int) -> Any:
        """So many bytes, all of them 0."""

    def view(self, memory: Any, placement: Placement) -> Any:
        """A buffer in this memory, in its own shape and type; cut by [...], folded by reshape."""

    def read(self, view: Any) -> Array:
        """The values, to be read at once: where the memory is NumPy's own, they change when it does. bfloat16, which
        NumPy does not have, comes as float32."""

    def write(self, view: Any, values: Any) -> None:
        """The values as they are now, whatever becomes of them."""

    def read_later(self, views: Sequence[Any], disable: tuple[Any, Any] | None = None) -> Callable[[], list[Array]]:
        """The values as they are when what was launched is through, and not as a later launch leaves them. Who asks for
        them waits for them, and for nothing that was launched since.

        `disable`: a number, and another that is looked at when these are copied: the first becomes 0 where that is not
        finite, or is a flag, 0 or 1, that is 0."""

    def scratch(self, call: Call, precision: Precision) -> Sequence[Scratch]:
        """What the kernel of a call needs besides its arguments, said before anything is allocated."""

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        """The native calls that compute it, each with everything decided. `arguments`: its arrays and scalars in the
        order of its signature; of a fused call, for each part its arrays by name. `options`: which outputs it adds to
        (`add`), and the arrays it has asked for (`scratch`)."""

    def bind_all(self, bind: Callable[[], T]) -> T:
        """What `bind` returns, which calls `bind` above for a whole list: kernels may be compiled side by side."""

    def rules(self, precision: Precision) -> Rules:
        """What it asks of lowering: the groups of calls that it binds as one."""

    def capture(self, natives: list[Native]) -> list[Native]:
        """Calls that always run in this order and with nothing in between, as they are run fastest, and before them
        what must come before any."""


def backend_named(name: str | Backend) -> Backend:
    if not isinstance(name, str) and hasattr(name, "bind"):  # one that is no part of this package
        return name
    if name not in (*BACKENDS, AUTO):
        raise unknown("backend", name, (*BACKENDS, AUTO))
    if name == AUTO:
        name = "cuda" if gpu.is_there() else "cpu"
    module = import_module(f"tapeless.backends.{name}")
    if name == "cpu":
        module.require_packages()
    found: Backend = getattr(module, name.upper())
    return found


def planner_named(name: str | Backend) -> Backend:
    """As `backend_named`, to plan with alone: for that the cuda backend needs no GPU, and the cpu backend no Numba and
    no processor of the kind that is planned for."""
    if name == "cpu":
        from tapeless.backends.cpu import PLANNER

        planner: Backend = PLANNER
        return planner
    if name != "cuda":
        return backend_named(name)
    gpu.require_packages()
    from tapeless.backends.device import Device

    found: Backend = Device()
    return found


def precision_for(backend: Backend, name: str | None, frozen: str | None = None) -> Precision:
    """The precision a model on this backend has: its own, unless another that it can run is asked for. `frozen`: what
    type its frozen matrices have, if not the one that this precision gives them."""
    if name is not None and name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    offered = backend.traits.precisions
    if name is not None and name not in offered:
        raise TapelessError(
            f"the {backend.name} backend has no {name}: it runs in {' or '.join(offered)}; take the reference backend."
        )
    found = PRECISIONS[offered[0] if name is None else name].freezing(frozen)
    if found.frozen != found.weight and not backend.traits.mixed_gemm:
        raise NotYetError(
            f"the {backend.name} backend multiplies no {found.activation} by weights that are {found.frozen} "
            f"(frozen_precision): take precision bfloat16 there, in which frozen weights are bfloat16 anyway."
        )
    return found


def thread_count(backend: Backend, count: int | None = None, *, lower: bool = False) -> int | None:
    """Get or set the thread count of calls bound from now on; where there are not so many threads, `lower` takes those
    there are. None where there is nothing to set."""
    if backend.name != "cpu":
        return None
    from tapeless.kernels import cpu as cpu_kernels

    if count is None:
        return cpu_kernels.threads()
    return cpu_kernels.set_threads(min(count, cpu_kernels.cores()) if lower else count)


def gemm_library(backend: Backend, name: str | None = None, *, lower: bool = False) -> str | None:
    """Get or set whose GEMMs calls have that are bound from now on; where those are not installed, `lower` takes the
    backend's own. None where there is nothing to set."""
    if backend.name != "cpu":
        return None
    from tapeless.kernels import cpu as cpu_kernels

    return cpu_kernels.gemm_library() if name is None else cpu_kernels.set_gemm_library(name, lower)


def chosen_here(backend: Backend) -> tuple[int, str] | None:
    """The thread count and the GEMM library of calls bound from now on; None where there is nothing to choose."""
    count, library = thread_count(backend), gemm_library(backend)
    return None if count is None or library is None else (count, library)


@contextmanager
def choosing(backend: Backend, chosen: tuple[int, str] | None) -> Iterator[None]:
    """Calls that are bound meanwhile have these."""
    if chosen is None or chosen == chosen_here(backend):
        yield
        return
    from tapeless.kernels import cpu as cpu_kernels

    with cpu_kernels.using_threads(chosen[0]), cpu_kernels.using_gemm_library(chosen[1]):
        yield


def bind_call(
    call: Call, arrays: dict[str, Any], backend: Backend, scratch: Sequence[Any] | None = None
) -> list[Native]:
    """Resolve a call once: its kernel, its arrays, its scalars. Running it then looks nothing up. A call that is bound
    by itself has scratch of its own, for the precision that its arrays have."""
    return bind_parts(call, [arrays], backend, scratch)


def bind_parts(
    call: Call, arrays: Sequence[dict[str, Any]], backend: Backend, scratch: Sequence[Any] | None = None
) -> list[Native]:
    """The same of a call that may be fused, with the arrays of each of its parts."""
    if scratch is None:
        from tapeless.program.arena import place_scratch

        placements, size = place_scratch(call, backend.scratch(call, _precision_of(call, arrays, backend)))
        memory = backend.allocate(size)
        scratch = [backend.view(memory, placement) for placement in placements]
    options: dict[str, Any] = {"scratch": scratch} if scratch else {}
    if len(call.parts) > 1:
        return backend.bind(call, list(arrays), options)
    arguments: list[Any] = [arrays[0].get(name) for name in call.signature.arguments]
    added = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    return backend.bind(call, arguments + call.numbers, ({"add": added} if added else {}) | options)


def _precision_of(call: Call, arrays: Sequence[dict[str, Any]], backend: Backend) -> Precision:
    pairs = zip(call.parts, arrays, strict=True)
    held = [(each.view.buffer.role, given[each.name]) for part, given in pairs for each in part.arguments]
    narrow = {role for role, array in held if "bfloat16" in str(array.dtype)}
    precision = PRECISIONS["bfloat16"] if narrow - {"frozen"} else precision_for(backend, None)
    return precision.freezing("bfloat16" if narrow else None)


def run_call(call: Call, arrays: dict[str, Any], backend: Backend) -> None:
    for native in bind_call(call, arrays, backend):
        native()
