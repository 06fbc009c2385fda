"""Where the time of a step goes: its calls one by one, beside what the machine can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tapeless.kernels import cpu as cpu_kernels
from tapeless.kernels.native import Native
from tapeless.model import Model
from tapeless.ops.residual.cpu import RESIDUAL
from tapeless.program.call import Call
from tapeless.program.listing import local_name

WARM_UP, TRIES = 2, 5  # a GPU compiles in the first run, and captures in the second


def profiled(model: Model, inputs: Any, targets: Any, steps: int) -> dict[str, Any]:
    """Median time of every call, those that do the same taken together, and the ceilings in the same run."""
    model.feed(inputs, targets)
    backend = model.engine.backend
    if backend.traits.asynchronous:
        from tapeless.bench import gpu

        clock, limits = gpu.seconds, gpu.ceilings(model.precision.activation)
        bound = [(call, backend.capture(natives)) for call, natives in model.engine.bound]
    else:
        clock, limits, bound = seconds, ceilings(), model.engine.bound
    times: list[list[float]] = [[] for _ in bound]
    for _ in range(WARM_UP + steps):
        model.prepare_update(1e-4, clip=1.0)
        for index, (_, natives) in enumerate(bound):
            times[index].append(clock(natives))
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (call, _), found in zip(bound, times, strict=True):
        group = groups.setdefault(
            _kind(call), {"call": call.title, "where": _where(call), "count": 0, "ms": 0.0, "flops": 0, "bytes": 0}
        )
        group["count"] += 1
        group["ms"] += 1000 * median(found[WARM_UP:])
        group["flops"] += call.flops
        group["bytes"] += _bytes(call, model)
    rows = sorted(groups.values(), key=lambda group: -group["ms"])
    return {"calls": rows, **limits}


def seconds(natives: Sequence[Native]) -> float:
    start = time.perf_counter()
    for native in natives:
        native()
    return time.perf_counter() - start


def _kind(call: Call) -> tuple[Any, ...]:
    return (call.title, tuple(sorted(call.dims.items())), tuple(argument.name for argument in call.arguments))


def _where(call: Call) -> str:
    """One of the buffers it writes, without the number of its block."""
    return local_name(call.writes[0].view.name, call.section)


def _bytes(call: Call, model: Model) -> int:
    """What a call must at least move: each array once, twice where it is read and written."""
    arrays = model.engine.arguments(call)
    return sum(
        arrays[argument.name].nbytes * (2 if argument.mode in ("add", "update") else 1) for argument in call.arguments
    )


def ceilings(size: int = 1536) -> dict[str, float]:
    """The fastest of a few square products, in GFLOP/s, and of a few streaming passes, in GB/s."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=(size, size)).astype(np.float32) for _ in range(3))
    source, sink = np.ones(1 << 25, np.float32), np.ones(1 << 25, np.float32)
    copy = RESIDUAL.bind(source.size, sink, source, source)
    return {
        "peak_gflops": 2 * size**3 / best(cpu_kernels.gemm(c, a, b), seconds) / 1e9,
        "peak_gbytes": 2 * source.nbytes / best(copy, seconds) / 1e9,
    }


def best(run: Native, clock: Callable[[Sequence[Native]], float]) -> float:
    return min(clock([run]) for _ in range(TRIES))
