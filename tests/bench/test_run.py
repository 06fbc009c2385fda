"""`make bench`: which commands it runs, and the tables that it makes of what they say."""

from importlib import import_module

run = import_module("run")  # of benchmarks/, which is no package

STEP = {
    "threads": 2, "blas": "MKL", "ratio": 1.25, "step_over_floor": 1.1, "ours_peak_bytes": 2**29,
    "ratios": {"torch_eager": 1.5, "torch_compile": 1.25, "peft": 1.45, "peft_compile": 1.4,
               "torch_eager_bfloat16": 1.6, "torch_compile_bfloat16": 1.35},
    "peers_peak_bytes": dict.fromkeys(("torch_eager", "torch_compile", "peft", "peft_compile"), 2**30),
}  # fmt: skip
DECODED = {
    "prompt": 32, "new": 64, "ratio": 1.9, "over_floor": 1.2, "same_tokens": True,
    "ms_per_token": {"decode-ours": 9.25},
}  # fmt: skip


def test_every_promise_has_its_row(tmp_path, monkeypatch):
    asked = []

    def measured(*words):
        asked.append(words)
        return " ".join(words), STEP if words[0] == "tapeless" else DECODED

    monkeypatch.setattr(run, "measured", measured)
    monkeypatch.setattr(run, "THERE", True)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results.md")
    run.main()
    found = (tmp_path / "results.md").read_text()
    rows = [line for line in found.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [" ".join(words) for words in asked]
    step, narrow, lora, decode = (
        next(row for row in rows if words in row)
        for words in ("-T 512 --steps 3`", "--precision bfloat16`", "--lora", "turns")
    )
    assert "| 1.50× | 1.25× | **1.25×** | 1.10 | 512 MiB | 50.0% | 50.0% |" in step
    assert "| 1.50× | 1.25× | 1.60× | 1.35× | **1.25×** | 1.10 | 512 MiB | 50.0% |" in narrow
    assert "| 1.45× | 1.40× | 1.10 | 512 MiB | 50.0% | 50.0% |" in lora
    assert "| 1.90× | 1.20 | 9.2 | yes |" in decode
