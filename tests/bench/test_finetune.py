"""`make finetune`: the questions that docstrings answer, and all of it once, small."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapeless.cli.app import app

docstrings, finetune = import_module("docstrings"), import_module("finetune")  # of benchmarks/, which is no package

MODULE = '''"""Wraps text.

More of it."""


def dedent(text, *, tabs=8):
    """Remove what all lines
    begin with."""


def bare(): pass


def _hidden():
    """Nobody is asked about this."""


def signature(x):
    """signature(x) -> y, as C functions have it."""


class Wrapper:
    """An object that wraps what it is given."""

    def wrap(self, text):
        """Break the text into lines."""

    @property
    def width(self):
        """Short."""
'''


def test_what_docstrings_answer(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "__init__.py").write_text(MODULE)
    found = [tuple(row.values()) for row in docstrings.asked_of(tmp_path / "text" / "__init__.py", tmp_path)]
    assert found == [
        ("What does text.dedent(text, *, tabs=8) do?", "Remove what all lines begin with."),
        ("What is the class text.Wrapper for?", "An object that wraps what it is given."),
        ("What does text.Wrapper.wrap(text) do?", "Break the text into lines."),
    ]


def library(root):
    """Modules that say something different each, two that say the same, and what is left out."""
    root.mkdir()
    for number in range(12):
        lines = [
            f'def f{each}(x):\n    """Return the number {number * 10 + each} of x."""\n    return {each}\n'
            for each in range(4)
        ]
        same = 'def same(x):\n    """Return what every module returns."""\n'
        (root / f"module{number}.py").write_text("\n".join([*lines, same]))
    (root / "test_module.py").write_text('def f():\n    """Tests that nobody asks about."""\n')


def test_all_of_it_small(tmp_path, monkeypatch, capsys):
    """On modules of our own, in process and in NumPy. What is held out stands in no training."""
    library(tmp_path / "library")
    docs = tmp_path / "docs.md"
    docs.write_text(f"before\n{finetune.BEGIN}\nold\n{finetune.END}\nafter\n")
    ran = []

    def called(*words, said=""):
        ran.append(words)
        result = CliRunner().invoke(app, list(words), input=said or None)
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.chdir(tmp_path)
    for name, value in {"tapeless": called, "SOURCE": "library", "ROOT": Path("library")}.items():
        monkeypatch.setattr(finetune, name, value)
    small = (
        "--set layers=1 --set channels=16 --set heads=2 --set kv_heads=1 --set hidden=16 --time 96 --batch 1 --record 0"
    )
    asked = {
        "--folder": "runs/small",
        "--steps": "2",
        "--vocab": "300",
        "--model": small,
        "--docs": str(docs),
        "--lora": "--lora 2 --batch 1 --epochs 1 --record 0",
        "--how": "--backend reference",
    }
    monkeypatch.setattr(sys, "argv", ["x", *(f"{name}={value}" for name, value in asked.items())])
    finetune.main()
    sides = {
        name: [json.loads(line) for line in (tmp_path / "runs" / "small" / name).read_text("utf-8").splitlines()]
        for name in ("chats.jsonl", "held-out.jsonl")
    }
    modules = {name: {row["prompt"].split()[2].split(".")[0] for row in rows} for name, rows in sides.items()}
    assert not modules["chats.jsonl"] & modules["held-out.jsonl"]
    assert modules["chats.jsonl"] | modules["held-out.jsonl"] == {f"module{number}" for number in range(12)}
    assert not any(".same(" in row["prompt"] for row in sides["held-out.jsonl"])
    told = docs.read_text("utf-8")
    assert told.startswith(f"before\n{finetune.BEGIN}\n")
    assert told.endswith(f"{finetune.END}\nafter\n")
    assert "old" not in told.split(finetune.BEGIN)[1].split("\n")
    for command in (
        "$ tapeless tokenize library",
        "$ tapeless train --init-from runs/small/base",
        "> What does module",
    ):
        assert command in told
    assert ran[-1][:2] == ("chat", "runs/small/tuned")
    with pytest.raises(SystemExit, match="is there already"):
        finetune.main()
    assert "\nconversations: " in capsys.readouterr().out


def test_the_docs_have_room():
    content = finetune.DOCS.read_text("utf-8")
    assert content.count(finetune.BEGIN) == content.count(finetune.END) == 1
