"""The kernels once more, compiled so that every index is checked against the array or slice it is used on.

As they are shipped they check nothing: one that reads a number beyond its slice, and happens to find there what it
needs, passes every other test. The checked kernels have a cache of their own, because Numba's is not keyed by this.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.random_ops import EDGES
from tests.properties.test_cpu_kernels import DIRECTIONS
from tests.random_cases import SOAK

ROOT = Path(__file__).parents[2]
KERNELS = "tests/properties/test_cpu_kernels.py"
PARTS = 60
TRIED = range(PARTS) if SOAK > 1 else range(1)  # each compiles its kernels anew, which takes many seconds


def python(*words: str, checked: bool, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": str(int(checked)), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("part", TRIED)
def test_no_kernel_leaves_its_arrays(part: int, request: pytest.FixtureRequest) -> None:
    assert request.config.cache
    kernels = [".".join(direction) for direction in DIRECTIONS[part::PARTS]]
    tests = [f"{KERNELS}::test_kernels_at_{size}_shapes[{kernel}]" for kernel in kernels for size in ("small", "large")]
    tests += [f"{KERNELS}::test_kernels_at_edges[{edge}-{kernel}]" for kernel in kernels for edge in EDGES]
    done = python(
        *("-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests),
        checked=True,
        cache=request.config.cache.mkdir("checked-kernels"),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert f"{len(tests)} passed" in done.stdout


@pytest.mark.parametrize("threaded", [False, True], ids=["serial", "threaded"])
def test_a_kernel_that_leaves_its_slice_is_noticed(threaded: bool, tmp_path: Path) -> None:
    code = f"from tests.kernels import outside; outside.run({threaded})"
    unchecked = python("-c", code, checked=False, cache=tmp_path / "unchecked")
    assert unchecked.returncode == 0, unchecked.stderr
    checked = python("-c", code, checked=True, cache=tmp_path / "checked")
    assert checked.returncode == 1
    assert "index is out of bounds" in checked.stderr
