"""What joins the stream is what the calls say, forward and back."""

import numpy as np
import pytest

from tapeless import Model
from tests.tracing.stream import branches
from tests.tracing.test_shares import built


@pytest.mark.parametrize("which", ["ops", "gpt"])
def test_a_branch_is_what_the_stream_gained(which):
    model, inputs, targets = built(which)
    found = branches(model, inputs, targets)
    forward = [each for each in found if each.direction == "forward"]
    assert [each.name for each in forward] == [
        f"blocks.{block}.{part}" for block in (0, 1) for part in ("attn.proj", "mlp.down")
    ]
    by_call = {each.call: each for each in found}
    before: dict[str, np.ndarray] = {}
    for number, (call, values) in enumerate(model.trace(inputs, targets)):
        if call.title == "residual.forward":
            x, branch = values["x"].astype(float).ravel(), values["branch"].astype(float).ravel()
            cosine = x @ branch / np.linalg.norm(x) / np.linalg.norm(branch)
            assert by_call[number].cosine == pytest.approx(cosine, rel=1e-9)
            assert by_call[number].size == pytest.approx(np.linalg.norm(branch) / np.sqrt(branch.size))
            total = values["y"].astype(float).ravel()
            size = np.sqrt(np.mean(total**2))
            sizes = by_call[number].size ** 2 + by_call[number].highway ** 2
            crossed = 2 * by_call[number].cosine * by_call[number].size * by_call[number].highway
            assert size**2 == pytest.approx(sizes + crossed, rel=1e-9)
        for argument in call.writes:
            if argument.mode == "add" and argument.view.buffer.role == "stream" and call.phase == "backward":
                was, now = before[argument.view.buffer.name], model.engine.read(argument.view)
                gained = (now - was).ravel()
                assert by_call[number].size == pytest.approx(np.sqrt(np.mean(gained**2)), rel=1e-9)
                cosine = was.ravel() @ gained / np.linalg.norm(was) / np.linalg.norm(gained)
                assert by_call[number].cosine == pytest.approx(cosine, rel=1e-9)
        for argument in call.writes:
            if argument.view.buffer.role == "stream":
                before[argument.view.buffer.name] = model.engine.read(argument.view).copy()
    assert len([each for each in found if each.direction == "backward"]) >= 4


def test_post_norm_blocks_have_branches_too():
    model = Model("ops-102k", batch=2, layers=2, channels=8, heads=2, placement="post", backend="reference")
    rng = np.random.default_rng(0)
    found = branches(model, rng.integers(0, 20, (2, 8)), rng.integers(0, 20, 2))
    assert {each.direction for each in found} == {"forward", "backward"}
    assert all(-1 <= each.cosine <= 1 for each in found)
