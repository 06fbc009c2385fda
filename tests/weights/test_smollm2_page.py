"""docs/smollm2.md, its commands in order, on a stand-in: a small Llama that is made here and imported under SmolLM2's
name, since a test reaches no hub."""

import re
import shlex
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import tapeless
from tapeless.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ tapeless (.*)$", PAGE, re.MULTILINE)]
STAND_IN = "train llama-4x256 --steps 3 --time 128 --data data --set layers=2 --set channels=32 --set heads=4"


def typed(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return " ".join(done.output.split())  # lines are broken where the terminal ends


def test_the_page_in_ten_minutes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("Every element has a symbol and a number.\n" * 200)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("c_kernel"))
    typed(*STAND_IN.split(), "--set", "kv_heads=2", "--set", "hidden=64", "--out", "runs/made")
    typed("export", "runs/made", "SmolLM2-135M-Instruct")
    assert COMMANDS[0] == ["import", "hf:HuggingFaceTB/SmolLM2-135M-Instruct"]
    typed("import", "SmolLM2-135M-Instruct")

    said = {" ".join(words[:2]): typed(*words) for words in COMMANDS[1:]}

    assert "118 conversations" in said["evaluate runs/SmolLM2-135M-Instruct-001"]
    assert "106 conversations to train, 12 held out" in said["train --init-from"]
    losses = [float(loss) for loss in re.findall(r"held out (\d\.\d+)", said["train --init-from"])]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.1
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (tmp_path / "my-adapter").iterdir()
    }
    # transformers goes on with the merged model as the run does.
    run = tapeless.load("runs/SmolLM2-135M-Instruct-001-tuned-001")
    tokens = run.encode("Tell me")
    ours = run.model.generate(tokens, 8, temperature=0)
    theirs = AutoModelForCausalLM.from_pretrained("my-smollm2", dtype=torch.float32)
    found = theirs.generate(torch.tensor([list(tokens)]), max_new_tokens=8, do_sample=False)
    assert found[0, len(tokens) :].tolist() == list(ours)[: len(found[0]) - len(tokens)]
