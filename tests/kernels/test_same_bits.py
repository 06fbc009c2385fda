"""Every kernel of a step, on two threads, again and again from the same arguments: the same bits, whatever the
runs before have left in its scratch. A hundred times in `make soak`, and there in bfloat16 as well: `make test` has of
that the GEMMs alone (test_gemm_bfloat16.py), as nothing else there has a model's kernels compiled for threads in
bfloat16, which takes half a minute a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.kernels.cpu.gemm_bfloat16 import HAS_BFLOAT16
from tests.random_cases import SOAK

pytestmark = pytest.mark.usefixtures("two_threads")

RUNS = 3 if SOAK == 1 else 100
SIZES: dict[str, Any] = {"layers": 1, "channels": 128, "heads": 4, "vocab": 1031, "context": 128}
MODELS = [(name, lean) for lean in (False, True) for name in ("gpt2-4x256", "llama-4x256")]
TRIED = [(*model, "float32") for model in MODELS]
TRIED += [(*model, "bfloat16") for model in MODELS if HAS_BFLOAT16 and SOAK > 1]


@pytest.mark.parametrize(("name", "lean", "precision"), TRIED)
def test_a_kernel_gives_the_same_bits_each_time(name, lean, precision):
    more: dict[str, Any] = {"kv_heads": 2, "hidden": 200} if name == "llama-4x256" else {}
    model = Model(name, batch=4, precision=precision, lean=lean, **SIZES, **more)
    tokens = np.random.default_rng(0).integers(0, 1031, (4, 128))
    model.feed(tokens, np.roll(tokens, -1, 1))
    model.prepare_update(1e-3, 1.0)
    for call, natives in model.engine.bound:
        views = model.engine.arguments(call)
        before = {argument: view.copy() for argument, view in views.items()}
        first = None
        for _ in range(RUNS):
            for argument, view in views.items():
                view[...] = before[argument]
            for native in natives:
                native()
            found = {argument.name: views[argument.name].tobytes() for argument in call.writes}
            first = first or found
            assert found == first, f"{call.title} ({precision})"
