"""docs/adding-a-model.md, followed to the letter: the model that it adds is checked, and one that is wired wrongly is
refused in a sentence that names the call."""

import pytest

from tests.check.followed import STEP, follower, page, run

PAGE = page("adding-a-model.md")
IN_A_MODEL = """
import numpy as np, tapeless
from tapeless.check.configurations import CONFIGURATIONS
from tapeless.errors import TapelessError
from tests.check.walked_models import check_walk
tokens = np.random.default_rng(0).integers(0, 7, (2, 4))
small = dict(layers=2, channels=6, heads=2, vocab=7, context=5, hidden=5)
model = tapeless.Model("parallel-4x256", batch=2, time=4, backend="reference", **small)
before = model.loss(tokens, tokens)
for _ in range(5):
    model.step(tokens, tokens, lr=1e-2)
assert model.loss(tokens, tokens) < before
assert len(model.generate([1, 2], 2, temperature=0)) == 2
assert sum("parallel" in c.name for c in CONFIGURATIONS) == 3
for c in CONFIGURATIONS:
    if "parallel" in c.name:
        assert not list(check_walk(c))  # every value is the plain model's, recomputed and frozen as well
try:
    tapeless.Model("parallel-4x256", backend="reference", readout="last", **small)
except TapelessError as error:
    assert "readout must be 'all'" in str(error)
else:
    raise AssertionError("not refused")
"""


@pytest.fixture
def package(tmp_path):
    return follower(PAGE, tmp_path)(len(PAGE))


def test_every_block_of_code_is_a_step():
    assert len(STEP.findall(PAGE)) == 14
    assert PAGE.count("```\n") == 2 * 14 + 2  # and the command that checks it


def test_the_model_is_verified_trains_and_decodes(package):
    done = run(package, "-m", "tapeless", "check", "parallel-4x256")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(package, "-c", IN_A_MODEL)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_backward_in_the_wrong_order_is_refused(package):
    file = package / "src/tapeless/models/blocks.py"
    text = file.read_text(encoding="utf-8")
    start = text.index("def parallel_backward")
    body = text[start:]
    norm = "    norm_backward(p, b.norm2, dx=add(dstream), dy=b.norm2.dy, x=x)\n"
    attention = "    dbranch = dropout_backward(p, b.drop1"
    wrong = body.replace(norm, "", 1).replace(attention, norm + attention, 1)
    file.write_text(text[:start] + wrong, encoding="utf-8")
    done = run(package, "-m", "tapeless", "explain", "parallel-4x256")
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "out of order: layernorm.backward" in said
    assert "blocks.py" in said
    assert "(dstream) stands where the backward of linear.forward" in said
