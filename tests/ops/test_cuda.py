"""The kernels of the CUDA backend, without a GPU: Triton's interpreter runs them on the CPU, in float32.

A GPU machine runs them as they are, in bfloat16 too: benchmarks/cuda.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.random_cases import SOAK

ROOT = Path(__file__).parents[2]
PARTS = 8
TRIED = range(PARTS) if SOAK > 1 else range(1)  # the interpreter is slow; each part has every op and direction


def python(*words: str, interpret: str = "1") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("part", TRIED)
def test_kernels_compute_what_the_reference_does(part: int) -> None:
    done = python("-m", "tests.ops.interpreted_cuda", str(part), str(PARTS))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 wrong" in done.stdout


def test_no_load_is_begun_ahead_where_there_is_nothing() -> None:
    """Compiled for a GPU, not run. One division by what may be 0, and some of them are."""
    done = python("-m", "tests.ops.compiled_cuda", interpret="0")
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.fullmatch(r"(\d heads in \d parts: [1-9]\d* loads, 0 unconditional\n){3}", done.stdout)
