"""Our step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.bench.profile import profiled
from tapeless.bench.race import Work
from tapeless.kernels import cpu as cpu_kernels
from tapeless.model import Model
from tapeless.ops.contract import Array


def build(work: Work) -> tuple[Model, Any, Any]:
    """The model and a batch for it."""
    if work.backend == "cpu":
        cpu_kernels.set_threads(work.threads)
        cpu_kernels.set_gemm_library(work.products)
    model = Model(
        work.preset,
        batch=work.batch,
        time=work.time,
        backend=work.backend,
        precision=work.precision,
        optimizer="adamw",
        **{"lean": True, **work.fields},
    )
    return model, *random_batch(model)


def random_batch(model: Model) -> tuple[Array, Array]:
    """Return random inputs and targets, the same each time."""
    rng, shape, config = np.random.default_rng(0), (model.batch, model.time), model.config
    targets = rng.integers(0, config.vocab, shape[:1] if config.readout == "last" else shape)
    if config.features:
        return rng.normal(size=(*shape, config.features)), targets
    return rng.integers(0, config.vocab, shape), targets


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], Callable[[int], dict[str, Any]]]:
    model, inputs, targets = build(work)

    def step() -> float:
        return model.step(inputs, targets, lr=1e-4, clip=1.0).loss

    def profile(steps: int) -> dict[str, Any]:
        return profiled(model, inputs, targets, steps)

    products = cpu_kernels.gemm_version() if work.backend == "cpu" else "cuBLAS"
    anew = any(not each.cached for each in cpu_kernels.compilations)
    return step, {"blas": products, "arena_bytes": model.plan.peak_bytes, "compiled": anew}, profile
