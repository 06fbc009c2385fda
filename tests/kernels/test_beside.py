"""Tapeless is a guest in the process: what was there before it, and what comes after it, computes as it did."""

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless.kernels.cpu import dispatch

HERE = Path(__file__).parent
OTHERS = ("torch", "numpy", "scipy", "sklearn")


def program(name, *arguments, timeout=300, **environment):
    """A program beside this file, in a process of its own, on two threads where there are as many."""
    cleared = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=cleared | environment)


def computed(path, *order):
    done = program("beside.py", path, *order)
    assert done.returncode == 0, (order, done.returncode, done.stderr)
    with np.load(path) as arrays:
        return dict(arrays)


def test_everybody_computes_what_they_compute_alone(tmp_path):
    """Both orders of import, both floats, and the model's steps before, between and after. Where the model comes last,
    everybody has computed in a process without it first; what they compute after it is compared there and then."""
    clean = computed(tmp_path / "last.npz", *OTHERS, "model")
    found = computed(tmp_path / "first.npz", "model", *OTHERS)
    assert found.keys() == clean.keys()
    for key, true in clean.items():
        rounding = 1e-5 if true.dtype in (np.float32, np.complex64) else 1e-10
        assert np.abs(found[key] - true).max() <= rounding * np.abs(true).max(), key


def test_numpy_keeps_its_threads():
    """NumPy's BLAS is the user's own."""
    code = (
        "import ctypes\n"
        "import numpy\n"
        "from pathlib import Path\n"
        "lines = Path('/proc/self/maps').read_text().splitlines()\n"
        "library = ctypes.CDLL(next(line.split()[-1] for line in lines if 'openblas' in line))\n"
        "before = library.scipy_openblas_get_num_threads64_()\n"
        "import tapeless\n"
        "from tapeless.kernels.cpu import dispatch\n"
        "for products in ('own', None):\n"
        "    dispatch.set_gemm_library(products)\n"
        "    tapeless.Model('ops-102k', batch=1)\n"
        "print(library.scipy_openblas_get_num_threads64_() == before > 0)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n", done.stderr


def test_a_mapped_file_may_have_any_name(tmp_path):
    """Whether an OpenMP is there is read off the names of the files that the process has mapped."""
    path = tmp_path / os.fsdecode(b"not \xff utf-8")
    path.write_bytes(b"some bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(path) in dispatch._loaded_libraries()


# Models in threads


@pytest.mark.parametrize(("steps", "options"), [(24, ()), (4, ("without-mkl",))], ids=["mkl", "without mkl"])
def test_models_in_threads_compute_what_they_compute_one_after_the_other(steps, options):
    """Same shapes and different ones, training, sampling, building: bit for bit. `make soak` takes many more steps."""
    soak = int(os.environ.get("TAPELESS_SOAK", "1"))
    done = program("two_models.py", 1000 if soak > 1 else steps, *options, timeout=3000)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.startswith("same")


def test_scratch_is_a_model_s_own():
    from tapeless import Model

    made: dict[str, Any] = {"batch": 2, "time": 70, "layers": 3, "vocab": 50, "context": 80, "channels": 32, "heads": 2}
    one, other = (Model("gpt2-4x256", **made) for _ in range(2))
    assert not np.shares_memory(one.engine.memory, other.engine.memory)
    for model in (one, other):
        arrays = [
            each for _, natives in model.engine.bound for native in natives for each in getattr(native, "args", ())
        ]
        arrays = [each for each in arrays if isinstance(each, np.ndarray) and each.dtype.kind == "f"]
        assert len(arrays) > 100
        for array in arrays:
            assert np.shares_memory(array, model.engine.memory)


# Processes


@pytest.mark.parametrize("way", ["fork", "multiprocessing fork"])
def test_a_forked_child_is_told(way):
    done = program("forking.py", way, 2)
    assert done.returncode == 0, done.stderr
    if blas_threads() > 1 and dispatch.mkl() is not None:  # then loops run on its OpenMP; our own threads start again
        assert "whose threads do not survive a fork" in done.stdout
        assert "spawn" in done.stdout
    assert "parent goes on" in done.stdout


@pytest.mark.parametrize(
    ("way", "threads", "options"),
    [("spawn", 2, ()), ("fork", 1, ()), ("fork early", 2, ()), ("fork", 2, ("without-mkl",))],
    ids=["spawned", "one thread", "before the first model", "without mkl"],
)
def test_a_child_that_can_compute_does(way, threads, options):
    done = program("forking.py", way, threads, *options)
    assert done.returncode == 0, done.stderr
    said = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith(("parent has", "child has"))]
    assert len(said) == 2, done.stdout
    assert said[0] == said[1]


def blas_threads():
    return min(2, len(os.sched_getaffinity(0)))
