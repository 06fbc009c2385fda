"""Every table of every command on a terminal of 80 and of 120 columns: nothing wider, nothing cut that matters."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer import rich_utils

from tapeless.bench.race import Work
from tapeless.cli import bench
from tapeless.cli.commands import COMMANDS
from tapeless.cli.common import console
from tapeless.cli.display import _columns
from tapeless.files.lock import hold
from tapeless.models.presets import PRESETS
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.screens import columns, document, refusal, screen

WIDTHS = (80, 120)
NAMES = ("operations", "a-run-with-quite-a-long-name-as-people-give-them-001", "bpe", "bytes")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of every kind, one of them with a name that is long."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text("def f(x):\n    return x + 1  # ünïcode 日本\n" * 60, encoding="utf-8")
    small = {"layers": 2, "channels": 8, "heads": 2}
    asked: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        NAMES[0]: ("ops-102k", small, {"data": "operations"}),
        NAMES[1]: ("ops-102k", small | {"frozen": ("blocks.0.*", "tokens.*")}, {"data": "operations", "lr": 3e-4}),
        NAMES[2]: ("gpt2-4x256", small | {"vocab": 300}, {"data": str(text), "tokenizer": "bpe", "time": 16}),
        NAMES[3]: ("gpt2-4x256", small, {"data": str(text), "time": 16}),
    }
    for name, (preset, model, settings) in asked.items():
        common: dict[str, Any] = {"steps": 4, "batch": 2, "backend": "reference", "eval_every": 1, "keep": 9}
        session = start(Request(preset, model, Settings(**common | settings)), folder / "runs" / name)
        session.train()
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_presets(width):
    shown = screen("presets", width=width)
    for name, preset in PRESETS.items():
        row = next(line.split() for line in shown.splitlines() if line.startswith(name))
        config = preset.architecture
        numbers = (config.layers, config.channels, config.heads, config.width, config.vocab, config.context)
        assert row[2:] == [f"{number:,}" for number in numbers]
    assert "tokens, pre-norm, tanh, causal, squared error" in shown


@pytest.mark.parametrize("width", WIDTHS)
def test_plan_and_explain(place, width):
    for name in ("ops-102k", "gpt2-124m", "sunfish", str(place / "runs" / "bpe")):
        planned = document("plan", name, "--memory", "1MB")
        shown = screen("plan", name, "--memory", "1MB", width=width)
        for buffer in planned["buffers"]:
            if buffer["kind"] != "kernel scratch":
                wanted = re.sub(r"^blocks\.\d+\.", "", buffer["name"])
                assert re.search(rf"(^|\.){re.escape(wanted)} ", shown, re.MULTILINE), buffer["name"]
        explained = screen("explain", name, width=width)
        assert "UPDATE" in explained


@pytest.mark.parametrize("width", WIDTHS)
def test_check(place, width):
    run = place / "runs" / "operations"
    shown = screen("check", run, width=width)
    assert "gradients hold" in shown
    assert "exact" in shown
    assert "configurations, each within" in " ".join(screen("check", run, "--backend", "cpu", width=width).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_runs(place, width):
    shown = screen("runs", place / "runs", width=width)
    together = re.sub(r"\s", "", shown)
    for each in document("runs", place / "runs"):
        assert f"{each['loss']:.4f}" in shown
        assert f"{each['best']:.4f}" in shown
        assert each["folder"].rpartition("/")[2][:10] in together
    assert shown.count("finished") == 4
    assert "text" in shown
    assert "gpt2-4x256" in shown
    assert [each["best"] for each in document("runs", place / "runs", "--by", "loss")] == sorted(
        each["best"] for each in document("runs", place / "runs")
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_evaluate(place, name, width):
    run = place / "runs" / name
    found = document("evaluate", run, "--backend", "reference")
    shown = screen("evaluate", run, "--backend", "reference", width=width)
    assert f"{found['loss']:.4f}" in shown
    assert f"{found['accuracy']:.2%}" in shown
    if name in ("bpe", "bytes"):
        assert f"{found['bits_per_byte']:.4f}" in shown
        assert f"{found['perplexity']:,.2f}" in shown
        assert "each scored once, each from the 9 to 16 before it" in " ".join(shown.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_compare(place, width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [place / "runs" / name for name in NAMES]
    shown = screen("compare", *runs[:2], width=width)
    assert re.search(r"^lr +0\.002 +0\.0003", shown, re.MULTILINE)
    assert "blocks.0.*" in shown
    found = document("compare", *runs[:2])
    assert set(found["differing"]) == {"lr", "frozen"}
    for each in found["runs"]:
        assert f"{each['best']:.4f}" in shown
    many = screen("compare", *runs, "--svg", "curves.svg", width=width)
    assert "They learn different things" in " ".join(many.split())
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("width", WIDTHS)
def test_attend(place, width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, picture = place / "runs" / "operations", Path("maps.svg")
    shown = screen("attend", run, "Max(1,2,6)", "--backend", "reference", "--svg", picture, width=width)
    for word in ("Max", "0.0", "0.1", "1.0", "1.1", "from 75%"):
        assert word in shown
    assert picture.read_text().startswith("<svg")
    found = document("attend", run, "Max(1,2,6)", "--backend", "reference")
    assert found["words"][0] == "Max"
    assert all(sum(row) == pytest.approx(1) for row in found["heads"]["0.1"])
    strips = screen("attend", run, "Max(1,2,6)", "--over-training", "--backend", "reference", width=width)
    assert "Only 4 checkpoints are kept: train with --set keep=50" in " ".join(strips.split())
    found = document("attend", run, "Max(1,2,6)", "--over-training", "--backend", "reference")
    assert [each["step"] for each in found["checkpoints"]] == [1, 2, 3, 4]
    text = screen("attend", place / "runs" / "bpe", "def f(x): # 日", "--backend", "reference", width=width)
    assert "def" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_tokenize_train_find_lr_and_sample(place, width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in (("bytes",), ("bpe", "--vocab", 280)):
        shown = screen("tokenize", place / "text.txt", "--tokenizer", *kind, "--out", kind[0], width=width)
        assert "vocabulary 2" in shown
        assert re.search(r"^held out +1 +[\d.]+ \w+ +[\d,]+ +[01]\.\d{3} +1", shown, re.MULTILINE)
    small = (
        "--set",
        "layers=1",
        "--set",
        "channels=8",
        "--set",
        "heads=2",
        "--batch",
        2,
        "--steps",
        4,
        "--backend",
        "reference",
    )
    shown = screen("train", "gpt2-4x256", *small, "--data", "bytes", "--time", 16, "--out", "text", width=width)
    assert "held-out loss" in shown
    assert "sample text --prompt" in shown
    monkeypatch.setattr(sys, "argv", ["tapeless", "train", "--find-lr"])  # of which it says how to go on
    shown = screen("train", *small, "--find-lr", "--out", "rates.svg", width=width)
    assert re.search(r"^ +\d\.\de-\d\d +4 +\d\.\d{4} +█{24} *$", shown, re.MULTILINE)  # what the best has learned
    assert "suggested learning rate" in shown
    assert "tokens" in screen("sample", "text", "--count", 40, "--backend", "reference", width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_label(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = np.arange(1200) // 100 % 3
    np.save("signal.npy", np.sin(np.arange(1200) * (1 + classes)))
    np.save("classes.npy", classes)
    given = ("--signal", "signal.npy", "--labels", "classes.npy", "--scales", "3,10", "--backend", "reference")
    small = ("--set", "layers=1", "--set", "channels=8", "--set", "heads=2", "--time", 32, "--batch", 4, "--steps", 2)
    shown = screen("label", "train", *given, *small, "--out", "run", width=width)
    assert re.search(r"precision +recall +F1", shown)
    assert "next: " in shown
    shown = screen("label", "predict", "run", "--signal", "signal.npy", "--out", "found.npy", width=width)
    assert shown.startswith("1,200 samples, 3 classes, after ")
    assert shown.endswith("  found.npy\n")


@pytest.mark.parametrize("width", WIDTHS)
def test_bench(width):
    """Its tables, for figures as wide as they get: what is measured is tests/bench's."""
    about = {"blas": "NumPy's BLAS, OpenBLAS 0.3.29", "arena_bytes": 1}
    runners: list[Any] = [
        SimpleNamespace(name=name, times=[123456.78], about=about, peak_bytes=lambda: 123 << 30)
        for name in ("ours", *bench.PEERS, "floor")
    ]
    row = {"call": "cached_attention.backward", "where": "attn.dqkv[0:2304]", "count": 48, "ms": 12345.678}
    calls = {"peak_gflops": 1e3, "peak_gbytes": 99.9, "calls": [row | {"flops": 1e13, "bytes": 1233e9}]}
    work = Work("smollm2-135m", 8, 1024, 128, {})
    with columns(width), console.capture() as printed:
        bench._print(work, runners, bench._result(work, runners))
        bench._print_profile(calls)
    shown = printed.get()
    assert max(map(len, shown.splitlines())) <= width
    assert re.search(r"^torch-compile +123,456\.78 +66 +1\.00× +123\.0 GiB", shown, re.MULTILINE)
    assert re.search(r"48 +12345\.678 +100\.0% +810\.0 +99\.9 *$", shown, re.MULTILINE)
    assert "…" not in shown


@pytest.mark.parametrize("width", WIDTHS)
def test_about_and_help(width, monkeypatch):
    assert screen("about", width=width).startswith("tapeless  ")  # no line for headings that there are none of
    shown = screen("help", width=width)
    assert shown.splitlines()[-1].startswith("Read one:")
    screen("help", "training", width=width)
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    commands = [(name,) for name in COMMANDS]
    for command in ((), *commands, ("label", "train"), ("label", "predict"), ("label", "demo")):
        shown = screen(*command, "--help", width=width)
        # No line of prose ends where one of the source does: each is as full as the next word lets it be.
        prose = shown.partition("╭")[0].splitlines()[3:]
        for line, following in pairwise(prose):
            if line.strip() and following.strip():
                assert len(line.rstrip()) + len(following.split()[0]) >= width - 1, (command, line)


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor(place, width):
    screen("doctor", place / "runs" / "bytes", width=width)


@pytest.mark.parametrize(("width", "details"), [(60, False), (80, False), (120, True)])
def test_the_training_line_has_the_speed(width, details):
    """At 80 columns and more; lr and the gradients' norm where there is room."""
    with columns(width):
        texts = " ".join(str(getattr(column, "text_format", "")) for column in _columns())
    assert ("fields[speed]" in texts) == (width >= 80)
    assert ("fields[lr]" in texts) == details
    assert "fields[loss]" in texts


MISTAKES = [
    (("evaluate", "nowhere"), "nowhere is not there"),
    (("compare", "nowhere", "there"), "nowhere is not there"),
    (("attend", "nowhere", "Max(1,2,6)"), "nowhere is not there"),
    (("runs", "nowhere"), "there is no folder nowhere"),
    (("runs", ".", "--by", "los"), "did you mean 'loss'"),
    (("runs", "empty"), "empty holds no runs"),
    (("evaluate", "runs/bytes", "--data", "empty.txt"), "empty.txt is empty"),
    (("evaluate", "runs/bytes", "--data", "empty"), "empty holds no text"),
    (("evaluate", "runs/bytes", "--checkpoint", "7"), "those it has are of 1, 2, 3, 4"),
    (("evaluate", "runs/bytes", "--backend", "gpu"), "unknown backend"),
    (("attend", "runs/bytes", "a prompt that is too long"), "25 tokens and runs/bytes reads 16"),
    (("attend", "runs/operations", "Max(1,2,6)", "--svg", "map.png"), "let it end in .svg"),
    (("attend", "runs/operations", "Max(1,2,6)", "--layer", "2"), "there are layers 0 to 1"),
    (("compare", "runs/bytes", "runs/bpe", "--svg", "nowhere/x.svg"), "cannot write nowhere/x.svg"),
    (("compare", "runs/bytes", "runs/bpe", "--svg", "x.txt"), "let it end in .svg"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_gets_one_sentence(place, words, said, monkeypatch):
    monkeypatch.chdir(place)
    (place / "empty.txt").touch()
    (place / "empty").mkdir(exist_ok=True)
    sentence = refusal(*words)
    assert said in sentence
    assert "\n" not in sentence


def test_a_run_that_is_trained_now_can_be_looked_at(place):
    run = place / "runs" / "operations"
    lock = hold(run)
    try:
        assert "running" in screen("runs", run)
        screen("evaluate", run, "--backend", "reference")
        assert "running" in screen("compare", run, place / "runs" / "bytes")
        screen("attend", run, "Max(1,2,6)", "--backend", "reference")
    finally:
        lock.release()


def test_nothing_is_written_into_a_run_that_is_looked_at(place):
    run = place / "runs" / "bytes"

    def state():
        return {path: path.stat().st_mtime_ns for path in sorted(run.rglob("*"))}

    before = state()
    for command in ("evaluate", "explain", "plan"):
        document(command, run)
    document("attend", run, "def")
    document("compare", run, place / "runs" / "bpe")
    assert state() == before


def test_json_is_one_document(place):
    for words in (("runs", place / "runs"), ("evaluate", place / "runs" / "bpe")):
        assert json.dumps(document(*words))
