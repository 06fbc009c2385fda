"""docs/ten-things.md and docs/trace.md as their readers have them: every block is run, in order, on small runs."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tapeless
from tapeless.cli.app import app
from tapeless.train import session
from tapeless.train.settings import Request, Settings

DOCS = Path(__file__).parents[1] / "docs"
LINE = "the quick brown fox jumps over the lazy dog\n"
TINY: dict[str, Any] = {"layers": 2, "channels": 16, "heads": 2}
QUICK = Settings(batch=8, time=24, steps=12, lr=1e-2, eval_every=6, eval_batches=1, log_every=1)
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(python)?\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the readers are: with a text, two runs that learned it, and one that answers."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "notes.txt").write_text(LINE * 60)
    text = replace(QUICK, data=str(folder / "notes.txt"))
    for name, model, settings in (
        ("gpt2-4x256-001", TINY, text),
        ("gpt2-4x256-002", TINY | {"layers": 1}, text),
        ("ops-102k-001", {"layers": 1, "channels": 16}, Settings(steps=5, eval_every=5)),
    ):
        begun = session.start(Request(name[:-4], model, settings), folder / "runs" / name)
        begun.train()
    return folder


def blocks(page):
    """(heading, language, code) of every block, the language of a command being empty."""
    text = (DOCS / page).read_text(encoding="utf-8")
    head = "## the beginning\n" + text.partition("\n## ")[0].partition("\n")[2] + "\n## " + text.partition("\n## ")[2]
    return [(heading, *found) for heading, part in SECTION.findall(head) for found in BLOCK.findall(part)]


def run_all(page, place, monkeypatch):
    """Everything that Python's blocks made; a command that fails is an error."""
    monkeypatch.chdir(place)
    names = {"np": np, "tapeless": tapeless}
    for heading, language, code in blocks(page):
        if language:
            exec(compile(code, f"{page}: {heading}", "exec"), names)
            continue
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            assert words.pop(0) == "tapeless", line
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
    return names


def test_ten_things_are_ten_and_short():
    headings = [heading for heading, _ in SECTION.findall((DOCS / "ten-things.md").read_text(encoding="utf-8"))]
    assert [heading.partition(".")[0] for heading in headings] == [str(number) for number in range(1, 11)]
    shown = blocks("ten-things.md")
    assert {heading for heading, *_ in shown} == set(headings)
    for heading, language, code in shown:
        assert len(code.splitlines()) <= (3 if language else 1), heading


def test_ten_things_work(place, monkeypatch, capsys):
    made = run_all("ten-things.md", place, monkeypatch)
    said = capsys.readouterr().out
    assert "right: the backward is the derivative of the forward." in said
    assert (
        made["moved"].keys() == {"embedding", "blocks.0", "blocks.1", "head"} == made["run"].model.gradient_norms.keys()
    )
    assert all(norm > 0 for norm in made["run"].model.gradient_norms.values())
    assert (place / "my-gpt" / "config.json").is_file()


def test_ten_things_are_found_from_the_readme():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    for page in ("ten-things.md", "trace.md", "api.md"):
        assert f"(docs/{page})" in readme


def test_the_five_things_of_a_trace(place, monkeypatch, capsys):
    made = run_all("trace.md", place, monkeypatch)
    assert "<gelu.backward (blocks.1, backward, " in capsys.readouterr().out
    model, activations, gradient = made["model"], made["activations"], made["gradient"]
    shape = (2, 16, model.config.width)
    assert activations.shape == gradient.shape == shape
    np.testing.assert_array_equal(made["kept"]["blocks.1.mlp.act"].reshape(shape), activations)
    assert made["weights"].shape == (2, 2, 16, 16)
    tokens, targets = np.random.default_rng(0).integers(0, 100, (2, 2, 16))  # as the page has them before its run
    assert made["losses"].shape == made["norms"].shape == tokens.shape
    assert made["losses"].mean() == pytest.approx(model.loss(tokens, targets), rel=1e-5)
    # The gradient of the activations and that of the weights behind them are of one loss.
    model.forward_backward(tokens, targets)
    up = model.grads["blocks.1.mlp.down.weight"]
    stream = np.linalg.lstsq(model.params["blocks.1.mlp.down.weight"], gradient.reshape(32, -1).T, rcond=None)[0].T
    np.testing.assert_allclose(activations.reshape(32, -1).T @ stream, up, rtol=1e-2, atol=1e-5)
    # A vector moved against its gradient by little lowers the loss by the norm.
    exact = tapeless.Model(model.preset, batch=2, time=16, backend="reference")
    for name in model.params:
        exact.write(name, model.read(name))
    seen = {}
    for call, values in exact.trace(tokens, targets):
        if call.title == "positions.backward":
            seen["dy"] = values["dy"].reshape(2, 16, -1).copy()
    assert made["norms"] == pytest.approx(np.linalg.norm(seen["dy"], axis=-1), rel=1e-3)


def test_norms_by_layer_are_those_of_the_gradients():
    model = tapeless.Model("gpt2-4x256", **TINY, vocab=11, context=8, backend="reference", frozen=("tokens.*",))
    tokens = np.arange(8)[None] % 11
    model.forward_backward(tokens, tokens)
    for section, norm in model.gradient_norms.items():
        own = [w.name for w in model.program.weights if w.section == section and w.name in model.grads]
        assert norm == pytest.approx(np.sqrt(sum((model.grads[name] ** 2).sum() for name in own)))
    model.update(lr=1e-3)
    assert list(model.gradient_norms.values()) == pytest.approx(model.read("gradient_norms").tolist())
