"""Where the time of a step goes, on a backend whose calls are still running when they return."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tapeless import Model
from tapeless.bench import gpu
from tapeless.bench.profile import profiled
from tests.backends.delayed import Delayed

SMALL: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2, "vocab": 11, "context": 4}


@pytest.fixture
def told(monkeypatch):
    """What a device is told, whose clock moves by one millisecond with each thing."""
    order: list[str] = []
    ticks = count()

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self):
            order.append("record")
            self.at = next(ticks)

        def synchronize(self):
            order.append("wait")

        def elapsed_time(self, other):
            return other.at - self.at

    def work():
        order.append("work")
        next(ticks)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return SimpleNamespace(order=order, work=work)


def test_a_gpu_is_timed_by_its_own_clock(told):
    assert gpu.seconds([told.work, told.work]) == 3e-3
    assert told.order == ["record", "work", "work", "record", "wait"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_gpu_can_do(dtype, told):
    found = gpu.ceilings(dtype, size=100, copied=1000, device="cpu")
    assert found["peak_gflops"] == pytest.approx(2 * 100**3 / 1e-3 / 1e9)
    assert found["peak_gbytes"] == pytest.approx(2 * 1000 / 1e-3 / 1e9)


def test_a_profile_where_calls_run_ahead(told, monkeypatch):
    monkeypatch.setattr(gpu, "ceilings", lambda dtype: {"peak_gflops": 1.0, "peak_gbytes": 2.0, "of": dtype})
    model = Model("gpt2-4x256", batch=2, backend=Delayed(), optimizer="adamw", **SMALL)
    tokens = np.arange(8).reshape(2, 4)
    found = profiled(model, tokens, tokens, 2)
    assert (found["peak_gbytes"], found["of"]) == (2.0, model.precision.activation)
    assert sum(row["count"] for row in found["calls"]) == len(model.program.calls)
    assert all(row["ms"] == row["count"] for row in found["calls"])  # a millisecond each
    assert model.steps == 4  # updates: two before anything counts, and two that do
