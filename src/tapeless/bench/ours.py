"""Our step, and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from tapeless.bench.race import Work
from tapeless.kernels.cpu import blas
from tapeless.kernels.cpu.compile import compiled
from tapeless.model import Model
from tapeless.ops.residual.cpu import RESIDUAL
from tapeless.program.call import Call
from tapeless.program.listing import local_name


def build(work: Work) -> tuple[Model, Any, Any]:
    """The model and a batch for it."""
    if work.backend == "cpu":
        blas.set_threads(work.threads)
        blas.set_products(work.products)
    model = Model(
        work.preset, batch=work.batch, time=work.time, backend=work.backend, precision=work.precision,
        optimizer="adamw", **{"lean": True, **work.fields},
    )  # fmt: skip
    rng, shape = np.random.default_rng(0), (work.batch, work.time)
    config = model.config
    targets = rng.integers(0, config.vocab, shape[:1] if config.readout == "last" else shape)
    if config.features:
        return model, rng.normal(size=(*shape, config.features)), targets
    return model, rng.integers(0, config.vocab, shape), targets


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], Callable[[int], dict[str, Any]]]:
    model, inputs, targets = build(work)

    def step() -> float:
        return model.step(inputs, targets, lr=1e-4, clip=1.0).loss

    def profile(steps: int) -> dict[str, Any]:
        return profiled(model, inputs, targets, steps)

    products = blas.name() if work.backend == "cpu" else "cuBLAS"
    anew = any(not each.cached for each in compiled)
    return step, {"blas": products, "arena_bytes": model.plan.peak_bytes, "compiled": anew}, profile


def profiled(model: Model, inputs: Any, targets: Any, steps: int) -> dict[str, Any]:
    """Median time of every call, those that do the same taken together, and the ceilings in the same run."""
    model.feed(inputs, targets)
    bound = model.engine.bound
    times: list[list[float]] = [[] for _ in bound]
    for _ in range(steps + 1):
        model.prepare_update(1e-4, clip=1.0)
        for index, (_, natives) in enumerate(bound):
            start = time.perf_counter()
            for native in natives:
                native()
            times[index].append(time.perf_counter() - start)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (call, _), found in zip(bound, times, strict=True):
        group = groups.setdefault(
            _kind(call), {"call": call.title, "where": _where(call), "count": 0, "ms": 0.0, "flops": 0, "bytes": 0}
        )
        group["count"] += 1
        group["ms"] += 1000 * median(found[1:])
        group["flops"] += call.flops
        group["bytes"] += _bytes(call, model)
    rows = sorted(groups.values(), key=lambda group: -group["ms"])
    return {"calls": rows, **ceilings()}


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
    product = blas.bound_gemm(c, a, b)
    source, sink = np.ones(1 << 25, np.float32), np.ones(1 << 25, np.float32)
    copy = RESIDUAL.bind(source.size, sink, source, source)
    return {
        "peak_gflops": 2 * size**3 / _best(product) / 1e9,
        "peak_gbytes": 2 * source.nbytes / _best(copy) / 1e9,
    }


def _best(run: Callable[[], None]) -> float:
    found = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)
