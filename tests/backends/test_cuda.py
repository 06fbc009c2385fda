"""The CUDA backend without a GPU: what it says where it cannot run, and a whole model under Triton's interpreter.

A GPU machine runs benchmarks/cuda.py.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tapeless import Model
from tapeless.backends.backend import backend_named
from tapeless.errors import ProgramError, TapelessError
from tapeless.program.arena import verify_plan
from tests.ops.test_cuda import python
from tests.random_cases import some


@pytest.mark.parametrize(("package", "title"), [("torch", "PyTorch"), ("triton", "Triton")])
def test_a_missing_package_is_named(package, title, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TapelessError, match=rf"^the cuda backend needs {title}: pip install {package}, or take"):
        Model("ops-102k", backend="cuda")


def test_no_gpu_is_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(TapelessError, match=r"^the cuda backend found no GPU: there is none, or its driver is missing"):
        backend_named("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(TapelessError, match=r"^the cuda backend needs a PyTorch with CUDA, and this one has none"):
        backend_named("cuda")


def test_memory_reads_and_writes_numpy_rounded_once():
    """As the host's memory does; bfloat16 comes back as float32."""
    from tapeless.backends.device import Device
    from tapeless.check.ops import held
    from tapeless.program.arena import Placement
    from tapeless.program.call import Buffer

    device = Device("cpu")
    memory = device.allocate(32)
    narrow, wide = (
        device.view(memory, Placement(Buffer("x", "workspace", (3,)), "scratch", dtype, at, size, ((0, 0),)))
        for dtype, at, size in (("bfloat16", 0, 6), ("float64", 8, 24))
    )
    values = np.array([1 + 2.0**-8 + 2.0**-40, np.inf, -3.0])  # a little above the middle between two of bfloat16
    values.flags.writeable = False
    device.write(narrow, values)
    device.write(wide, 5)
    assert device.read(narrow).dtype == np.float32
    assert device.read(narrow).tolist() == [1 + 2.0**-7, np.inf, -3.0]
    assert device.read(wide).tolist() == [5.0, 5.0, 5.0]
    assert device.read(held({"a": values}, device)["a"]).tolist() == values.tolist()


def test_a_captured_list_computes_once_each_time_it_runs(monkeypatch):
    """The first run is the warm-up and counts; while it is captured, on the second, nothing is computed."""
    import torch

    from tapeless.backends.device import Captured

    ran: list[str] = []

    class Graph:
        def replay(self):
            ran.append("replayed")

    @contextmanager
    def capturing(graph):
        before = len(ran)
        yield
        assert ran[before:] == ["one", "two"]  # what a device would have recorded
        del ran[before:]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    run = Captured([lambda: ran.append("one"), lambda: ran.append("two")])
    for _ in range(3):
        run()
    assert ran == ["one", "two", "replayed", "replayed"]


@pytest.mark.parametrize("backend", ["device", "reference"])
def test_what_is_read_later_is_what_was_there_and_a_limit_is_shut_by_what_is_not_finite(backend):
    from tapeless.backends.device import Device
    from tapeless.backends.reference import REFERENCE
    from tapeless.program.arena import Placement
    from tapeless.program.call import Buffer

    device = Device("cpu") if backend == "device" else REFERENCE
    memory = device.allocate(320)
    names = {"limit": "float64", "number": "float32", "flag": "int64", "numbers": "float32"}
    views = {}
    for at, (name, dtype) in enumerate(names.items()):
        shape = (3,) if name == "numbers" else (1,)
        size = shape[0] * int(dtype[-2:]) // 8
        views[name] = device.view(memory, Placement(Buffer(name, "output", shape), "output", dtype, 64 * at, size, ()))

    def written(**values):
        for name, value in values.items():
            device.write(views[name], np.array(value))

    written(number=1.5, flag=1, limit=1e19, numbers=[1.0, 2.0, 3.0])
    later = device.read_later([views["numbers"], views["flag"], views["number"]])
    written(number=7.0, flag=0, numbers=[7.0, 7.0, 7.0])
    found = later()
    assert [each.tolist() for each in found] == [[1.0, 2.0, 3.0], [1], [1.5]]
    assert [str(each.dtype) for each in found] == ["float32", "int64", "float32"]
    for number, flag, by, left in (
        (0.0, 1, "number", 1e19),
        (0.0, 1, "flag", 1e19),
        (1.0, 0, "flag", 0.0),
        (np.nan, 1, "number", 0.0),
        (np.inf, 1, "number", 0.0),
        (-np.inf, 1, "number", 0.0),
        (np.nan, 1, "flag", 1e19),
    ):
        written(number=number, flag=flag, limit=1e19)
        device.read_later([views["number"]], (views["limit"], views[by]))()
        assert device.read(views["limit"]).tolist() == [left]


@pytest.mark.parametrize("part", some(["differences", "together", "ahead"], 3))
def test_a_model_does_what_the_reference_does_and_calls_bound_as_one_what_they_do_singly(part):
    done = python("-m", "tests.backends.interpreted_model", part)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout == "0 wrong\n"


def test_planning_needs_no_gpu():
    """The bytes that a GPU machine will ask for; its calls are bound to tensors without memory."""
    from tapeless.models.presets import preset
    from tapeless.step import StepSpec

    made = preset("gpt2-4x256").override(layers=2)
    plan = StepSpec.of(made, batch=2, seq_len=64, backend="cuda", precision="bfloat16").plan()
    titles = [" ".join(part.title for part in call.parts) for call in plan.program.calls]
    assert titles.count("residual.forward layernorm.forward") == 4
    assert plan.peak_bytes > 14 * plan.parameters  # working weights, gradients, master copy, two moments
    # A block's gradients lie over the activations that are read for the last time while they are written.
    mlp = [f"blocks.{n}.mlp" for n in range(2)]
    assert plan.over == {f"{name}.d{part}": f"{name}.{part}" for name in mlp for part in ("up", "act")}
    for above, below in plan.over.items():
        assert plan.placements[above].offset == plan.placements[below].offset
    assert max(plan.live_bytes) <= plan.peak_bytes
    with pytest.raises(ProgramError, match="overlap"):
        verify_plan(replace(plan, over={}))
    away = replace(plan.placements[above], offset=plan.placements[above].offset + 64)
    with pytest.raises(ProgramError, match="overlap"):
        verify_plan(replace(plan, placements=plan.placements | {above: away}))


@pytest.mark.parametrize(
    ("words", "precision", "rows"),
    [
        (50_257, "bfloat16", 5253),  # room for 5248 rows of 50,304
        (50_257, "float32", 2563),
        (151_936, "bfloat16", 1664),
        (151_936, "float32", 1024),  # more than half a gigabyte, as fewer are slow
        (2, "bfloat16", 1 << 27),  # all there are
    ],
)
def test_a_gpu_has_half_a_gigabyte_of_logits(words, precision, rows):
    from tapeless.backends.backend import planner_named
    from tapeless.program.precision import PRECISIONS

    assert planner_named("cuda").traits.logits_chunk(words, PRECISIONS[precision]) == rows


@pytest.mark.parametrize(("there", "name"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_a_gpu_where_there_is_one(there, name, monkeypatch):
    import types

    from tapeless.backends import gpu

    monkeypatch.setattr(gpu, "is_there", lambda: there)
    monkeypatch.setitem(
        sys.modules, "tapeless.backends.cuda", types.SimpleNamespace(CUDA=types.SimpleNamespace(name="cuda"))
    )
    assert backend_named("auto").name == name
