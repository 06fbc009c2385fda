"""Memory of a GPU: one block that torch has allocated, of which every view is a torch tensor.

An op's `cuda.py` binds as its `cpu.py` does; how much scratch it needs is found by binding it to tensors without memory
(`kernels/cuda/scratch.py`). A list that runs again is captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch

from tapeless.backends.backend import bind_parts
from tapeless.backends.fused import bind
from tapeless.backends.host import to_be_narrowed
from tapeless.backends.traits import Traits
from tapeless.errors import TapelessError
from tapeless.kernels.cuda.launch import blocks
from tapeless.kernels.cuda.products import exact
from tapeless.kernels.cuda.scratch import handed, recorded
from tapeless.kernels.cuda.vocabulary import row_width
from tapeless.kernels.native import Native, Scratch
from tapeless.lowering.gpu import FUSIONS, group_of
from tapeless.lowering.rules import Rules
from tapeless.ops.contract import Array
from tapeless.program.arena import Placement
from tapeless.program.call import Call
from tapeless.program.precision import Precision

PIECE = 1 << 22  # elements
LOGITS, FEWEST_ROWS = 1 << 29, 1024  # bytes of logits at a time, but no fewer rows

T = TypeVar("T")


class Device:
    name = "cuda"

    def __init__(self, device: str = "cuda") -> None:
        """On "cpu", where tests have no GPU, Triton's interpreter runs the kernels and nothing is captured."""
        self.device = device
        # cuBLAS multiplies matrices of one type.
        self.traits = Traits(
            ("float32", "bfloat16"), mixed_gemm=False, asynchronous=device != "cpu", logits_chunk=_logits_chunk
        )

    def allocate(self, size: int) -> Any:
        try:
            return torch.zeros(size, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError:
            free, _ = torch.cuda.mem_get_info()
            raise TapelessError(
                f"this needs {size:,} bytes in one block and the GPU has {free:,} left: "
                f"take a smaller batch, time or model, or recompute=True."
            ) from None

    def view(self, memory: Any, placement: Placement) -> Any:
        raw = memory[placement.offset : placement.offset + placement.bytes]
        return raw.view(getattr(torch, placement.dtype)).view(placement.buffer.shape)

    def read(self, view: Any) -> Array:
        held = view.cpu()  # and there widened: the device has no room for it
        values: Array = (held.float() if held.dtype == torch.bfloat16 else held).numpy()
        return values

    def write(self, view: Any, values: Any) -> None:
        """From memory that the device reads by itself, when what runs there now is through: nobody waits for it, and
        torch gives this memory to nobody else before."""
        array = np.array(values, order="C")  # torch takes none that is only to be read
        source = torch.from_numpy(to_be_narrowed(array) if view.dtype == torch.bfloat16 else array)
        source = source if self.device == "cpu" else source.pin_memory()
        if source.dtype == view.dtype or source.shape != view.shape or not view.is_contiguous():
            view.copy_(source, non_blocking=True)
            return
        # Where the type changes, torch brings the source to the device first: piece by piece, as it has no room there.
        for part, piece in zip(view.view(-1).split(PIECE), source.view(-1).split(PIECE), strict=True):
            part.copy_(piece, non_blocking=True)

    def read_later(self, views: Sequence[Any], disable: tuple[Any, Any] | None = None) -> Callable[[], list[Array]]:
        """By one copy: they are a few numbers of an arena, and lie close together."""
        starts = [view.storage_offset() * view.element_size() for view in views]
        first, last = min(starts), max(start + view.nbytes for start, view in zip(starts, views, strict=True))
        near = torch.empty(0, dtype=torch.uint8, device=self.device)
        near.set_(views[0].untyped_storage(), first, (last - first,))
        held = torch.empty(last - first, dtype=torch.uint8, pin_memory=self.device != "cpu")
        held.copy_(near, non_blocking=True)
        there = None if self.device == "cpu" else torch.cuda.current_stream().record_event()
        if disable is not None:
            number, seen = disable
            number.mul_(seen.isfinite() if seen.dtype.is_floating_point else seen)

        def values() -> list[Array]:
            if there is not None:
                there.synchronize()
            parts = (held[start - first :][: view.nbytes] for start, view in zip(starts, views, strict=True))
            return [self.read(part.view(view.dtype)) for part, view in zip(parts, views, strict=True)]

        return values

    def scratch(self, call: Call, precision: Precision) -> Sequence[Scratch]:
        with recorded() as asked:
            bind_parts(call, [_without_memory(part, precision) for part in call.parts], self, scratch=())
        return asked

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        if len(call.parts) > 1:
            with handed(options.get("scratch", ())):
                return [partial(_run_exactly, bind(group_of(call.parts), arguments))]
        module = f"tapeless.ops.{call.op}.cuda"
        binder = getattr(import_module(module), call.direction, None) if find_spec(module) else None
        if binder is None:
            raise TapelessError(
                f"{call.op} has no {call.direction} on the cuda backend: write it in ops/{call.op}/cuda.py, "
                f"or take the reference backend."
            )
        with handed(options.pop("scratch", ())):
            natives = binder(*arguments, **options)
        return [partial(_run_exactly, natives)]

    def bind_all(self, bind: Callable[[], T]) -> T:
        return bind()

    def rules(self, precision: Precision) -> Rules:
        return Rules(FUSIONS, omits=True)

    def capture(self, natives: list[Native]) -> list[Native]:
        return natives if self.device == "cpu" or not natives else [Captured(natives)]


class Captured:
    """Native calls as one. The first run is an ordinary one, in which kernels are compiled and cuBLAS makes itself
    ready; the second captures them in a CUDA graph, which is what runs from then on."""

    def __init__(self, natives: list[Native]) -> None:
        self._natives, self._ran = natives, False
        self._graph: Any = None

    def __call__(self) -> None:
        if not self._ran:
            self._ran = True
            _run(self._natives)
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # nothing runs meanwhile
                _run(self._natives)
            self._graph = graph
        self._graph.replay()


def _logits_chunk(words: int, precision: Precision) -> int:
    """GEMMs want thousands of rows, in multiples of 128. More than half a gigabyte of logits brings nothing."""
    width = row_width(words)
    rows = LOGITS // (width * precision.itemsize("activation")) // 128 * 128
    return blocks(max(rows, FEWEST_ROWS) * width, words)


def _without_memory(call: Call, precision: Precision) -> dict[str, Any]:
    """Its arguments, as tensors that have a shape and a type alone."""
    arrays = {}
    for argument in call.arguments:
        buffer, name = argument.view.buffer, argument.name
        whole = torch.empty(buffer.shape, dtype=getattr(torch, precision.dtype(buffer.role)), device="meta")
        columns = whole[..., argument.view.start : argument.view.stop]
        arrays[name] = columns.reshape(call.spec.kernel_shape(name, tuple(columns.shape)))
    return arrays


def _run(natives: Sequence[Native]) -> None:
    for native in natives:
        native()


def _run_exactly(natives: Sequence[Native]) -> None:
    with exact():
        _run(natives)
