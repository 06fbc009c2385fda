"""The built-in bfloat16 GEMM: exact where integers make any order exact, within its matrices, in the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tapeless.kernels.cpu import gemm_bfloat16, sizes
from tapeless.kernels.cpu.dispatch import B_BFLOAT16, ROW_MAJOR
from tests.kernels.gemm_shapes_bfloat16 import faults

ROOT = Path(__file__).parents[2]
BFLOAT16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(7)
pytestmark = pytest.mark.skipif(not gemm_bfloat16.HAS_BFLOAT16, reason="this processor multiplies no bfloat16")


def a_sample(count):
    near = [size for step in (16, 32) for size in (step - 1, step, step + 1, 2 * step + 1)]
    return [tuple(RNG.choice(near, 3)) if number % 2 else tuple(RNG.integers(1, 71, 3)) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sizes_strides_types_transposes_and_adding(workers):
    assert list(faults(a_sample(128), workers)) == []


def test_sizes_beyond_a_block():
    deep = sizes.DEEP
    assert list(faults([(40, 33, deep + 5)] * 16, workers=2)) == []
    assert list(faults([(700, 20, 300), (20, 1500, 800), (33, 65, deep), (65, 33, deep)], workers=2)) == []


def test_without_amx():
    """avx512_bf16 alone, as other processors have it."""
    features = ",".join(f"+{name}" for name in sorted(gemm_bfloat16.FEATURES) if not name.startswith("amx"))
    environment = {**os.environ, "NUMBA_CPU_FEATURES": features, "NUMBA_CPU_NAME": "x86-64-v4"}
    code = (
        "from tests.kernels.test_gemm_bfloat16 import a_sample, faults, gemm_bfloat16\n"
        "assert not gemm_bfloat16.AMX and not list(faults(a_sample(64)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def gemm_of(a, b, workers):
    c = np.empty((len(a), b.shape[1]), np.float32)
    panels = np.full(gemm_bfloat16.scratch_floats(len(a), b.shape[1], len(b), workers), RNG.normal(), np.float32)
    gemm_bfloat16.bound(c, a, b, False, False, False, workers, panels, None)()
    return c


def test_bits_depend_on_the_numbers_alone():
    a, b = RNG.normal(size=(150, 700)).astype(BFLOAT16), RNG.normal(size=(700, 200)).astype(BFLOAT16)
    whole = gemm_of(a, b, 1)
    for workers in (2, 3, 4):
        for _ in range(25):
            assert gemm_of(a, b, workers).tobytes() == whole.tobytes()
    for rows, columns in ((1, 1), (7, 40), (33, 33)):
        assert np.array_equal(gemm_of(a[:rows], np.ascontiguousarray(b[:, :columns]), 1), whole[:rows, :columns])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_passes_through(special):
    a, b = RNG.normal(size=(30, 50)).astype(BFLOAT16), RNG.normal(size=(50, 40)).astype(BFLOAT16)
    a[17, 3], b[48, 37] = special, special
    with np.errstate(invalid="ignore"):
        found, true = gemm_of(a, b, 2), a.astype(np.float32) @ b.astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(true))
    assert np.array_equal(found[np.isinf(true)], true[np.isinf(true)])


def test_the_small_gemm_that_kernels_call():
    """Along k in several steps, of float32 and bfloat16."""
    p, v = RNG.integers(-8, 9, (64, 1300)).astype(np.float32), RNG.integers(-8, 9, (1300, 48)).astype(BFLOAT16)
    out = np.empty((64, 48), np.float32)
    order = ROW_MAJOR + B_BFLOAT16
    gemm_bfloat16.SMALL_GEMM.ctypes(
        order, 111, 111, 64, 48, 1300, 0.5, p.ctypes.data, 1300, v.ctypes.data, 48, 0.0, out.ctypes.data, 48
    )
    assert np.array_equal(out, 0.5 * (p @ v.astype(np.float32)))
