"""explain, plan and check look at a preset or at a run, which brings its own model, batch and time."""

import re

import pytest

from tapeless.train.base import FILE
from tapeless.train.run import Run, open_run, write_configuration
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.screens import document, refusal, screen


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few updates, with a model that is no preset's."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    settings = Settings(data="operations", batch=5, steps=2, backend="reference", beta1=0.8)
    session = start(Request("ops-102k", {"layers": 1, "channels": 16, "frozen": ("tokens.*",)}, settings), folder)
    session.train()
    return folder


def test_plan_of_a_run_is_the_plan_of_its_model(run):
    planned = document("plan", run)
    assert (planned["batch"], planned["time"], planned["precision"]) == (5, 8, "float64")
    optimizer = open_run(run).spec().optimizer
    assert optimizer is not None
    assert optimizer.beta1 == 0.8
    assert planned["parameters"] == open_run(run).spec().program().parameters
    assert {"tokens.weight"} == {each["name"] for each in planned["buffers"] if each["kind"] == "frozen"}
    assert document("plan", run, "-B", "6")["peak_bytes"] > planned["peak_bytes"]
    on_cpu = document("plan", run, "--backend", "cpu")
    assert (on_cpu["precision"], on_cpu["buffers"][0]["dtype"]) == ("float32", "float32")
    assert on_cpu["peak_bytes"] < planned["peak_bytes"]


def test_a_plan_names_what_frozen_matrices_are_held_in(run):
    words = ("plan", run, "--memory", "300MiB")  # of which nothing is left to look for a batch in
    assert document(*words)["frozen_precision"] is None
    held = document(*words, "--set", "frozen_precision=bfloat16")
    assert (held["precision"], held["frozen_precision"]) == ("float64", "bfloat16")
    shown = screen(*words, "--set", "frozen_precision=bfloat16", width=200)
    assert "reference backend, float64 with frozen matrices in bfloat16" in shown


def test_explain_of_a_run_is_its_own_step(run):
    calls, program = document("explain", run), open_run(run).spec().program()
    assert [call["op"] for call in calls] == [call.op for call in program.calls]
    assert [call["results"][0]["shape"] for call in calls] == [
        list(call.writes[0].view.shape) for call in program.calls
    ]
    assert "beta1" in str(calls[-1]["scalars"])
    assert calls[-1]["scalars"]["beta1"] == 0.8
    shown = screen("explain", run, width=120)
    assert "batch 5, time 8" in shown
    assert "frozen" in shown


def test_values_are_those_of_the_runs_weights(run):
    def norm_of_first(folder):
        calls = document("explain", folder, "--values")
        return next(r["norm"] for c in calls for r in c["results"] if c["op"] == "linear" and c["phase"] == "forward")

    assert norm_of_first(run) == norm_of_first(run)
    fresh = document("explain", "ops-102k", "--set", "layers=1", "--set", "channels=16", "-B", "5", "--values")
    first = next(r["norm"] for c in fresh for r in c["results"] if c["op"] == "linear" and c["phase"] == "forward")
    assert norm_of_first(run) != pytest.approx(first, rel=1e-4)


def test_check_of_a_run_proves_its_own_model(run):
    report = document("check", run)
    assert report["ok"]
    (wiring,) = report["wiring"]
    assert wiring["parameters"] == open_run(run).spec().program().parameters
    assert wiring["gradients"] == len(open_run(run).spec().program().trained)
    assert not any(each["tensor"] == "tokens.weight" for each in report["report"] if "small" in each["configuration"])


def test_check_of_a_run_on_a_backend(run):
    report = document("check", run, "--backend", "reference")
    assert report["ok"]
    report = document("check", run, "--backend", "cpu")
    assert report["ok"]
    assert report["configs"] == 2


def test_check_takes_what_is_frozen():
    report = document("check", "cllm", "--set", "frozen=blocks.*")
    models = [each for each in report["report"] if not each["configuration"].startswith("op ")]
    assert {each["tensor"].split(".")[0] for each in models} == {"tokens", "positions", "norm"}
    assert "is the name of no weight" in refusal("check", "cllm", "--set", "frozen=blocs.*")
    assert "name a preset or a run" in refusal("check", "--set", "frozen=blocks.*")


def test_a_run_whose_layers_a_small_model_lacks_is_proven_too():
    frozen = "frozen=tokens.*,positions.*,norm.*,blocks.[0-2].*"
    report = document("check", "gpt2-4x256", "--set", frozen)
    assert report["ok"]
    assert report["wiring"][0]["gradients"] == 12


def test_what_is_neither_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "ops-102k").mkdir()
    for command in ("plan", "explain", "check"):
        assert "folder is not a run" in refusal(command, "folder")
        assert "runs/nowhere is not there" in refusal(command, "runs/nowhere")
        assert "ops-102k is not a run" in refusal(command, "./ops-102k")
        assert "did you mean 'ops-102k'" in refusal(command, "opps-102k")
        assert "a name is empty" in refusal(command, "")
    assert document("plan", "ops-102k")["parameters"] == 102_016  # a preset's name is the preset


@pytest.mark.parametrize("frozen", ["nothing.*", "*"])
def test_a_slip_in_what_is_frozen_does_not_keep_a_run_from_being_read(run, frozen, tmp_path):
    """It is a training's to refuse."""
    made = Run(tmp_path / "copy")
    made.checkpoints.parent.mkdir()
    for name in ("checkpoints", FILE):
        (made.folder / name).symlink_to(run / name)
    opened = open_run(run)
    write_configuration(made, opened.request(), opened.preset().override(frozen=(frozen,)))
    model, _, _ = made.model("newest", backend="reference")
    assert model.parameters == open_run(run).spec().program().parameters
    assert "frozen" in refusal("train", "--resume", made.folder, "--steps", "9")


def test_the_plan_ends_with_the_answer():
    lines = screen("plan", "gpt2-4x256", "-B", "4", "-T", "256", "--memory", "4GB").splitlines()
    assert re.fullmatch(r"It needs \d+\.\d MiB \(\d+(,\d{3})+ bytes\), and some 300 MiB for Python itself\.", lines[-3])
    assert lines[-2] == "With 4GB: it fits."
    batch = int(lines[-1].removeprefix("The largest batch that fits at time 256 is ").removesuffix("."))
    needs = [document("plan", "gpt2-4x256", "-B", n, "-T", "256", "--memory", "4GB") for n in (batch, batch + 1)]
    assert [each["fits"] for each in needs] == [True, False]
    assert needs[0]["largest_batch"] == batch
    here = screen("plan", "ops-102k").splitlines()
    assert re.fullmatch(r"This machine has .* free of .*: it fits\.", here[-2])
    large = screen("plan", "gpt2-350m", "--memory", "4GB", "-T", "64").splitlines()
    assert large[-2:] == [
        "With 4GB: it does not fit.",
        "Its weights and optimizer's state alone take 4.0 GiB.",
    ]
    added_up = screen("plan", "gpt2-350m", "--memory", "4GB", "-T", "64", "--set", "lean=false").splitlines()
    assert added_up[-1] == "Its weights, gradients and optimizer's state alone take 5.3 GiB."
    tight = screen("plan", "ops-102k", "--memory", "302MiB", "-B", "900").splitlines()
    assert "does not fit" in tight[-2]


def test_the_plan_folds_equal_layers_and_tells_weight_from_bias():
    shown = screen("plan", "gpt2-124m", "-T", "64", "--memory", "1GB")
    rows = [line.split()[0] for line in shown.splitlines() if line.startswith("blocks.")]
    for name in ("weight", "bias", "dweight", "dbias"):
        assert rows.count(f"blocks.0–11.attn.proj.{name}") == 1
    words = ("plan", "gpt2-124m", "-T", "64", "--memory", "1GB")
    frozen = screen(*words, "--set", "frozen=blocks.[0-2].*,blocks.5.*")
    kinds = [line.split()[:2] for line in frozen.splitlines() if line.startswith("blocks.")]
    assert ["blocks.0–2,5.mlp.up.bias", "frozen"] in kinds
    assert ["blocks.3–4,6–11.mlp.up.bias", "weight"] in kinds
