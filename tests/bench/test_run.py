"""`make bench`: which commands it runs, and the tables that it makes of what they say."""

import json
from importlib import import_module
from subprocess import CompletedProcess

import pytest

run = import_module("run")  # of benchmarks/, which is no package

STEP = {
    "threads": 2,
    "blas": "MKL",
    "ratio": 1.25,
    "step_over_floor": 1.1,
    "ours_peak_bytes": 2**29,
    "ratios": {
        "torch_eager": 1.5,
        "torch_compile": 1.25,
        "peft": 1.45,
        "peft_compile": 1.4,
        "torch_eager_bfloat16": 1.6,
        "torch_compile_bfloat16": 1.35,
    },
    "without_amx": ["torch_eager_bfloat16"],
    "peers_peak_bytes": dict.fromkeys(("torch_eager", "torch_compile", "peft", "peft_compile"), 2**30),
}
DECODED = {
    "prompt": 32,
    "new": 64,
    "ratio": 1.9,
    "over_floor": 1.2,
    "same_tokens": True,
    "ms_per_token": {"decode-ours": 9.25},
}


def test_every_promise_has_its_row(tmp_path, monkeypatch):
    asked = []

    def measured(*words):
        asked.append(words)
        return " ".join(words), STEP if words[0] == "tapeless" else DECODED

    monkeypatch.setattr(run, "measured", measured)
    monkeypatch.setattr(run, "has_bfloat16", lambda: True)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "benchmarks.md")
    monkeypatch.setattr(run, "JOURNAL", tmp_path / "bench.jsonl")
    run.main()
    found = (tmp_path / "benchmarks.md").read_text("utf-8")
    rows = [line for line in found.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [" ".join(words) for words in asked]
    step, narrow, lora, decode = (
        next(row for row in rows if words in row)
        for words in ("-T 512 --steps 3`", "--precision bfloat16`", "--set lora=", "turns")
    )
    assert "| 1.50× | 1.25× | **1.25×** | 1.10 | 512 MiB | 50.0% | 50.0% |" in step
    assert "| 1.50× | 1.25× | 1.60× | 1.35× | **1.25×** | 1.10 | 512 MiB | 50.0% |" in narrow
    assert "| 1.45× | 1.40× | 1.10 | 512 MiB | 50.0% | 50.0% |" in lora
    assert "| 1.90× | 1.20 | 9.2 | yes |" in decode
    assert found.count("ours alone used AMX") == 1


def test_a_stopped_run_goes_on_with_the_rows_it_has(tmp_path, monkeypatch):
    """But those of another code are measured anew, and a command that fails leaves no row."""
    ran, code = [], ["v1"]

    def done(command, **kept):
        ran.append(command[-2])
        failed = command[-2] == "bad"
        return CompletedProcess(command, int(failed), "" if failed else json.dumps({"number": len(ran)}), "it broke")

    monkeypatch.setattr(run.subprocess, "run", done)
    monkeypatch.setattr(run.subprocess, "check_output", lambda *words, **kept: f"{code[-1]}\n")
    monkeypatch.setattr(run, "JOURNAL", tmp_path / "runs" / "bench.jsonl")
    assert run.measured("tapeless", "bench", "a") == ("tapeless bench a", {"number": 1})
    assert run.measured("tapeless", "bench", "a") == ("tapeless bench a", {"number": 1})
    with pytest.raises(SystemExit, match="it broke"):
        run.measured("tapeless", "bench", "bad")
    code.append("v2")
    assert run.measured("tapeless", "bench", "a") == ("tapeless bench a", {"number": 3})
    assert ran == ["a", "bad", "a"]


def test_each_processor_keeps_its_chapter():
    first = run.beside("", "One CPU\n\nold\n\n### In bfloat16\n\nrow\n")
    both = run.beside(first, "Another\n\nfigures\n")
    again = run.beside(both, "One CPU\n\nnew\n")
    assert again.startswith(run.INTRODUCTION + "\n\n## One CPU\n\nnew\n\n## Another\n\nfigures\n")
    assert both.count("### In bfloat16") == 1
    assert "old" not in again
    assert again.endswith("figures\n")
