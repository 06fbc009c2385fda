"""The floor: the step's matrix products alone, on the same memory, and one pass over the optimizer's bytes.

Everything else a step does (norms, activations, softmax, the loss, the bias sums) is what stands above it. The
products inside attention are taken over all heads at once, at the size the mask leaves: the same work in fewer, larger
products than any attention can use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tapeless.bench.ours import build
from tapeless.bench.race import Work
from tapeless.kernels.cpu import Gemm, gemm
from tapeless.kernels.native import Native
from tapeless.ops.attention.reference import pairs
from tapeless.program.call import Call
from tapeless.program.precision import Precision, numpy_type


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], None]:
    # Not lean: products alone would go on from what other products have left in the place of their factors.
    model, inputs, targets = build(replace(work, fields={**work.fields, "lean": False}))
    model.step(inputs, targets, lr=1e-4, clip=1.0)  # or the update would be one that is not made
    runs: list[Native] = []
    for call, bound in model.engine.bound:
        if call.op == "attention":
            runs += _attention_products(call, model.precision)
        elif call.phase == "update":
            runs += bound
        else:
            runs += [run for run in bound if isinstance(run, Gemm)]

    def step() -> None:
        for run in runs:
            run()

    return step, {"products": sum(isinstance(run, Gemm) for run in runs)}, None


def _attention_products(call: Call, precision: Precision) -> list[Native]:
    """q·kᵀ and p·v forward; s, dp, dv, dq, dk backward, over as many keys as are visible on average."""
    dims = call.dims
    rows, width = dims["B"] * dims["H"] * dims["T"], dims["C"] // dims["H"]
    keys = max(1, pairs(dims, **dict(call.scalars)) // dims["T"])
    rng = np.random.default_rng(0)
    kind = numpy_type(precision.activation)
    q, k = (rng.normal(size=(length, width)).astype(kind) for length in (rows, keys))
    scores = rng.normal(size=(rows, keys)).astype(np.float32)
    across: list[Native] = [gemm(scores, q, k, transpose_b=True)]  # q·kᵀ, dy·vᵀ
    along: list[Native] = [gemm(q, scores, k)]  # p·v, ds·k
    down: list[Native] = [gemm(k, scores, q, transpose_a=True)]  # pᵀ·dy, dsᵀ·q
    return across + along if call.direction == "forward" else 2 * across + along + 2 * down
