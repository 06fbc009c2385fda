"""docs/adding-an-op.md, followed to the letter: its blocks in order, each into the file it names, in a copy of the
package and the catalogue of bugs; and after the steps at which the page says that the op can be proven, it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-an-op.md").read_text(encoding="utf-8")
STEP = re.compile(
    r"Into `(?P<file>(?:src|tests)/[^`]+)`(?:, (?P<how>before|instead of) `(?P<line>[^`]+)`)?:\n\n"
    r"```(?:python)?\n(?P<code>.*?)```",
    re.DOTALL,
)
LISTED = PAGE.index("Now it can be proven")
FAST = PAGE.index("Then `tapeless check softplus` holds its kernels")


@pytest.fixture
def package(tmp_path):
    """The package before the first step, and a way to take the steps up to a place of the page. Each test has its own,
    so that none depends on which were run before it."""
    folder = tmp_path
    for part in ("src/tapeless", "tests/bugs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    steps = list(STEP.finditer(PAGE))

    def follow(place):
        while steps and steps[0].start() < place:
            _take(folder, steps.pop(0))
        return folder

    return follow


def _take(folder, step):
    file = folder / step["file"]
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if step["how"] is None:
        file.write_text(text + "\n\n" * bool(text) + step["code"], encoding="utf-8")
        return
    line = next(line for line in text.splitlines(keepends=True) if line.startswith(step["line"]))
    kept = line if step["how"] == "before" else ""
    file.write_text(text.replace(line, step["code"] + kept, 1), encoding="utf-8")


def run(folder, *command, **environment):
    paths = {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}
    given = [sys.executable, *command]
    return subprocess.run(given, capture_output=True, text=True, env=os.environ | paths | environment, cwd=folder)


def test_every_block_of_python_has_its_place():
    assert len(STEP.findall(PAGE)) == 11
    assert PAGE.count("```python") == len([step for step in STEP.finditer(PAGE) if step["how"] is None])


def test_1_to_6_the_reference_is_proven(package):
    done = run(package(LISTED), "-m", "tapeless", "check", "softplus")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "softplus: holds." in done.stdout
    assert "1 gradients, 20 elements" in done.stdout
    assert "none were tried" in done.stdout


def test_7_its_kernels_are_held_to_it(package):
    done = run(package(FAST), "-m", "tapeless", "check", "softplus")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("beside the reference", "in every order of the parallel loops", "denormals and 1e30"):
        assert part in done.stdout


ON_THE_GPU = """
import numpy as np, torch
from tapeless.ops.softplus import cuda
x = torch.linspace(-40, 40, 1001)
y = torch.full_like(x, np.nan)
for native in cuda.forward(y, x): native()
assert torch.allclose(y, torch.nn.functional.softplus(x), rtol=1e-6, atol=1e-7), y
"""
IN_A_MODEL = """
import numpy as np, tapeless
tokens = np.random.default_rng(0).integers(0, 20, (2, 8))
from tapeless.models.presets import PRESETS
for each in PRESETS.values():  # whose activations are still there
    each.override(layers=1)
made = dict(batch=2, time=8, layers=1, channels=16, heads=2, vocab=20, activation="softplus")
model = tapeless.Model("gpt2-4x256", backend="reference", **made)
assert model.forward_backward(tokens, tokens) > 0
assert any(call.op == "softplus" and call.direction == "backward" for call in model.program.calls)
from tests.bugs.catalogue import BUGS
from tapeless.check.ops import check_alone
(bug,) = [bug for bug in BUGS if bug.name == "softplus-sign"]
assert not list(check_alone("softplus"))
with bug.plant():
    assert list(check_alone("softplus"))
"""


def test_7_to_9_on_a_gpu_in_a_model_and_with_a_bug(package):
    folder = package(len(PAGE))
    for code, environment in ((ON_THE_GPU, {"TRITON_INTERPRET": "1"}), (IN_A_MODEL, {})):
        done = run(folder, "-c", code, **environment)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "was", "becomes", "sentence"),
    [
        ("ops/softplus/reference.py", "    dx[...] = dy", "    dx = dy", "dx of softplus.backward is not written"),
        ("ops/softplus/reference.py", "    return {", "    {", "example in ops/softplus/reference.py returned None"),
        ("ops/softplus/cpu.py", "    return [SOFTPLUS.bind", "    [SOFTPLUS.bind", "cpu.py returned None"),
        ("check/definitions.py", '    "softplus": softplus,\n', "", "softplus has no definition"),
    ],
)
def test_what_was_forgotten_is_one_sentence(package, file, was, becomes, sentence):
    folder = package(len(PAGE))
    place = folder / "src" / "tapeless" / file
    text = place.read_text(encoding="utf-8")
    assert was in text
    place.write_text(text.replace(was, becomes), encoding="utf-8")
    checked = "check_backend_alone('softplus', backend_named('cpu'))" if "cpu" in file else "check_alone('softplus')"
    code = "from tapeless.backends.backend import backend_named\nfrom tapeless.check.ops import *\n"
    done = run(folder, "-c", f"{code}print(*{checked})")
    assert sentence in done.stdout, done.stderr
    assert not done.stderr
