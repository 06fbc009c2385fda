"""Products of our gemm_float32."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import dispatch, gemm_float32, packing, sizes
from tapeless.kernels.cpu.microkernels_float32 import Tiles, tiles_for
from tapeless.kernels.cpu.sizes import thread_grid
from tests.kernels.gemm_shapes import WAYS, Guarded, faults

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("own_products")

RNG = np.random.default_rng(5)


def a_sample(count, most=70):
    """Sizes around those of tiles, and any."""
    steps = (packing.ROWS, packing.LANES, packing.WIDTH)
    near = [size for step in steps for size in (step - 1, step, step + 1, 2 * step + 1)]
    around = [tuple(RNG.choice(near, 3)) for _ in range(count // 2)]
    return [(1, 1, 1), (most, most, most), *around, *(tuple(RNG.integers(1, most + 1, 3)) for _ in range(count // 2))]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sizes_strides_transposes_and_adding(workers):
    """`make gemm-shapes` tries every size."""
    assert list(faults(70, a_sample(60), workers=workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_sizes_beyond_a_block(workers):
    shapes = [
        (sizes.BLOCK_HIGH + 5, 40, sizes.BLOCK_DEPTH + 3),
        (13, sizes.BLOCK_WIDE + 33, 2 * sizes.BLOCK_DEPTH + 17),
        (3 * sizes.BLOCK_HIGH, 64, 4),
    ]
    for shape in shapes:
        assert list(faults(max(shape), [shape], [WAYS[0], WAYS[-1], WAYS[2], WAYS[4]], workers=workers)) == []


@pytest.mark.parametrize(("features", "machine"), [("+avx2,+fma,+avx", "x86_64"), ("+sse4.2", "x86_64")])
def test_other_widths(features, machine, tmp_path):
    """What is compiled for another machine computes the same on this one, where it can."""
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    code = (
        "from tests.kernels.gemm_shapes import faults\n"
        "from tests.kernels.test_gemm_float32 import a_sample\n"
        "from tapeless.kernels.cpu import gemm_float32\n"
        "assert not list(faults(70, a_sample(20)))\n"
        "print(gemm_float32.LANES)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == tiles_for(features, machine).lanes


def test_tiles_leave_registers_for_what_is_multiplied():
    assert tiles_for("+avx512f,+avx2", "x86_64") == Tiles(16, 12, 2)  # of 32 registers
    assert tiles_for("+avx2", "AMD64") == Tiles(8, 6, 2)  # of 16
    assert tiles_for("+neon", "arm64") == tiles_for("", "aarch64") == Tiles(4, 6, 4)  # of 32
    assert tiles_for("+sse2", "x86_64") == Tiles(4, 4, 2)  # of 16


def gemm_of(a, b, workers):
    c = np.empty((len(a), b.shape[1]), np.float32)
    room = np.empty(gemm_float32.scratch_floats(len(a), b.shape[1], len(b), workers), np.float32)
    gemm_float32.bound(c, a, b, False, False, False, workers, room)()
    return c


def test_bits_depend_on_the_numbers_alone():
    """Not on the threads, on what stands in the rows and columns beside, or on what the scratch held."""
    a, b = (RNG.normal(size=size).astype(np.float32) for size in ((150, 700), (700, 200)))
    whole = gemm_of(a, b, 1)
    for workers in (2, 3, 4, 6):
        for _ in range(17):
            assert gemm_of(a, b, workers).tobytes() == whole.tobytes()
    for rows, columns in ((1, 1), (7, 40), (13, 33), (100, 15)):
        assert np.array_equal(gemm_of(a[:rows], np.ascontiguousarray(b[:, :columns]), 1), whole[:rows, :columns])


def test_relu_and_masks_let_nan_through():
    """So that it is noticed, as the op does. In the middle of a tile, and at the edge."""
    a, b = np.full((14, 40), -1, np.float32), np.ones((40, 37), np.float32)
    mask = np.full((14, 37), -1, np.float32)
    a[13, 39] = mask[3, 5] = mask[13, 36] = np.nan
    c, room = np.empty((14, 37), np.float32), np.empty(gemm_float32.scratch_floats(14, 37, 40, 1), np.float32)
    gemm_float32.bound(c, a, b, False, False, False, 1, room, relu=True)()
    assert np.isnan(c[13]).all()
    assert not c[:13].any()
    gemm_float32.bound(c, a, b, False, False, False, 1, room, mask=mask)()
    assert c[3, 5] == -40
    assert np.isnan(c[13, 36])
    assert np.count_nonzero(c) == 2


def test_alpha_is_the_same_at_the_edge():
    """attention's scale: what lies in a tile's edge is rounded as what lies in its middle."""
    a, b, c = (RNG.normal(size=size).astype(np.float32) for size in ((24, 300), (300, 64), (24, 64)))
    for_a_blas = gemm_float32.SMALL_GEMM.ctypes
    found = []
    for columns in (64, 61):
        out = c.copy()
        for_a_blas(
            101, 111, 111, 24, columns, 300, 0.3, a.ctypes.data, 300, b.ctypes.data, 64, 1.0, out.ctypes.data, 64
        )
        found.append(out)
    assert np.array_equal(found[0][:, :61], found[1][:, :61])
    assert np.array_equal(found[1][:, 61:], c[:, 61:])
    assert np.abs(found[0] - (np.float32(0.3) * (a.astype(np.float64) @ b) + c)).max() < 1e-4


def test_the_tiny_gemm():
    """Attention's, of integers: all sizes, b transposed and its row of whole vectors, in front of a guard page."""
    step = packing.LANES
    for number, (m, n) in enumerate(product(range(1, gemm_float32.TINY + 1, 3), range(1, gemm_float32.TINY + 1))):
        add, width = number % 2, step * (1 + number % 2)
        transpose_a = number % 3 == 0
        assert tiny_gemm_is_right(m, -(-n // step) * step, width, n, transpose_a, True, add)
        assert tiny_gemm_is_right(m, width, n, width, transpose_a, False, add)


def tiny_gemm_is_right(m, room, k, n, transpose_a, transpose_b, add):
    left, right, outs = Guarded(m * k), Guarded(n * k), Guarded(m * room)
    a = left.rows(k, m, m) if transpose_a else left.rows(m, k, k)
    b = right.rows(n, k, k) if transpose_b else right.rows(k, n, n)
    out = outs.rows(m, room, room)
    for matrix in (a, b, out):
        matrix[...] = RNG.integers(-8, 9, matrix.shape)
    true = 0.5 * ((a.T if transpose_a else a) @ (b.T if transpose_b else b)) + add * out[:, :n]
    transposes = (112 if transpose_a else 111), (112 if transpose_b else 111)
    factors = (a.ctypes.data, m if transpose_a else k, b.ctypes.data, k if transpose_b else n)
    gemm_float32.TINY_GEMM.ctypes(101, *transposes, m, n, k, 0.5, *factors, float(add), out.ctypes.data, room)
    return np.array_equal(out[:, :n], true)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_passes_through(special):
    a, b = (RNG.normal(size=size).astype(np.float32) for size in ((30, 50), (50, 40)))
    a[17, 3], b[48, 37] = special, special
    with np.errstate(invalid="ignore", over="ignore"):
        found, true = gemm_of(a, b, 2), a @ b
    assert np.array_equal(np.isnan(found), np.isnan(true))
    assert np.array_equal(found[np.isinf(true)], true[np.isinf(true)])
    assert np.array_equal(np.isfinite(found), np.isfinite(true))


def test_every_rectangle_has_a_tile():
    for m, n in ((1, 1), (1, 4096), (4096, 1), (13, 33), (1024, 3072)):
        for workers in range(1, 9):
            across, down = thread_grid(m, n, workers, packing.ROWS, packing.WIDTH)
            assert across * down in (1, workers)
            assert across <= -(-n // packing.WIDTH)
            assert down <= -(-m // packing.ROWS)


def test_a_library_that_is_not_there(monkeypatch):
    with pytest.raises(TapelessError, match="unknown products"):
        dispatch.set_gemm_library("atlas")
    monkeypatch.setattr(dispatch, "mkl", lambda: None)
    with pytest.raises(TapelessError, match="not installed"):
        dispatch.set_gemm_library("mkl")
