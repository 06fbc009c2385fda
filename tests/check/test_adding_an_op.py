"""docs/adding-an-op.md, followed to the letter: its blocks in order, each into the file it names, in a copy of the
package and the catalogue of bugs; and after the steps at which the page says that the op can be proven, it is."""

from __future__ import annotations

import pytest

from tests.check.followed import STEP, follower, page, run

PAGE = page("adding-an-op.md")
LISTED = PAGE.index("Now it can be verified")
FAST = PAGE.index("Then `tapeless check softplus` holds its kernels")


@pytest.fixture
def package(tmp_path):
    """Each test has its own, so that none depends on which were run before it."""
    return follower(PAGE, tmp_path)


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
