"""The fixture `prove`, in somebody else's project: a folder with tests of its own, and the package beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
KERNELS = """
import numpy as np

def softsign(x):
    return x / np.sqrt(1 + x * x)

def fast_softsign(y, x):
    y[...] = x / np.sqrt(1 + x * x)

def fast_backward(dx, dy, x):
    dx[...] = dy / (1 + x * x) / np.sqrt(1 + x * x)

def wrong_backward(dx, dy, x):
    dx[...] = dy / (1 + x * x)
"""
TESTS = """
import sys
import numpy as np
import kernels

X = np.random.default_rng(0).normal(size=(3, 5))

def test_nobody_is_disturbed():
    assert not {"tapeless", "torch", "numba"} & sys.modules.keys()

def test_right(prove):
    prove(kernels.softsign, X, kernel=(kernels.fast_softsign, kernels.fast_backward), within=1e15)

def test_wrong(prove):
    prove(kernels.softsign, X, kernel=(None, kernels.wrong_backward))

def test_the_mathematics_alone(prove):
    report = prove(kernels.softsign, lambda dy, x: dy * (1 + x * x) ** -1.5, X)
    assert report.inputs[0].method == "complex step"
"""


def test_another_project_has_it_in_three_lines(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_kernels.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_tapeless", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "wrong: the kernel is not what its definition says." in done.stdout
    assert "FAILED test_kernels.py::test_wrong" in done.stdout
    assert "dx is " in done.stdout
    assert "Traceback" not in done.stdout


def test_an_installed_package_brings_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # By the module's own name, so that `-p pytest_tapeless` beside it is no second plugin.
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_tapeless": "pytest_tapeless"}
    assert "src/pytest_tapeless" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
