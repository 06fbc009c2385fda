"""Every command as a user types it: in a process of its own, for people and for machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from tapeless import PRESETS
from tapeless.check.tolerances import TOLERANCES
from tapeless.cli.commands import COMMANDS
from tests.cli.typed import typed
from tests.screens import document


def tapeless(*words: str, folder: Path | None = None, columns: int = 120) -> subprocess.CompletedProcess:
    return typed(*words, folder=folder, COLUMNS=str(columns))


def result_of(*words: str, folder: Path | None = None):
    done = tapeless(*words, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_command_alone_is_loaded_alone():
    code = "import sys; sys.argv = ['tapeless', 'presets', '--json']; from tapeless.cli import main\n"
    code += "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numba", "torch", "tokenizers", "tapeless.check", "tapeless.cli.train"} & set(done.stderr.split())


def test_presets_for_people_and_machines():
    listed = {entry["name"]: entry for entry in result_of("presets")}
    assert set(listed) == set(PRESETS)
    assert listed["ops-102k"]["parameters"] == 102_016
    assert listed["gpt2-4x256"]["parameters"] == 16_287_488
    assert listed["gpt2-124m"]["parameters"] == 124_439_808
    assert listed["gpt2-124m"]["hidden"] == 3072
    shown = tapeless("presets").stdout
    assert all(name in shown for name in PRESETS)
    assert "1,557,611,200" in shown


def test_plan_lists_every_buffer_with_its_bytes():
    plan = result_of("plan", "gpt2-4x256", "-B", "2", "-T", "32")
    assert plan["preset"] == "gpt2-4x256"
    assert plan["parameters"] == 16_287_488
    wanted = {"name", "kind", "shape", "dtype", "offset", "bytes", "first_call", "last_call", "ranges"}
    assert all(set(buffer) == wanted for buffer in plan["buffers"])
    assert max(buffer["offset"] + buffer["bytes"] for buffer in plan["buffers"]) <= plan["peak_bytes"]
    kinds = {buffer["kind"] for buffer in plan["buffers"]}
    assert kinds == {"weight", "gradient", "state", "constant", "input", "output", "saved", "scratch", "kernel scratch"}
    weights = sum(buffer["bytes"] for buffer in plan["buffers"] if buffer["kind"] == "weight")
    assert weights == 4 * plan["parameters"]  # float32 on the cpu backend


def test_plan_takes_any_preset_field():
    def planned(*words):  # in so little memory no largest batch is looked for
        return result_of("plan", "gpt2-4x256", "-T", "256", "--memory", "1MB", *words)

    plain = planned()
    assert planned("--set", "recompute=true")["peak_bytes"] < plain["peak_bytes"]
    assert planned("--set", "layers=2")["flops"] < plain["flops"]
    assert planned("--set", "tied=false")["parameters"] == 16_287_488 + 50257 * 256
    wide = planned("--backend", "reference")
    assert wide["buffers"][0]["dtype"] == "float64"
    assert wide["peak_bytes"] > 1.9 * plain["peak_bytes"]


def test_plan_for_people_says_peak_and_place():
    shown = tapeless("plan", "gpt2-4x256", "-T", "64").stdout
    for word in ("16,287,488", "bytes", "peak", "classifier.backward", "saved", "scratch", "FLOP"):
        assert word in shown, word


def test_explain_groups_numbers_and_formulas():
    shown = tapeless("explain", "ops-102k").stdout
    assert shown.index("FORWARD") < shown.index("BACKWARD") < shown.index("UPDATE")
    assert "attn.qkv   = x @ attn.qkv.weight" in shown
    assert "+= mlp.actᵀ @ dsum2" in shown
    calls = result_of("explain", "ops-102k")
    assert [call["call"] for call in calls] == list(range(len(calls)))
    for call in calls:
        assert call["results"], call
        assert all({"buffer", "shape", "access", "formula"} <= set(result) for result in call["results"])
    adds = [r["buffer"] for call in calls for r in call["results"] if r["access"] == "add"]
    assert "tokens.dweight" in adds


def test_explain_says_what_is_frozen():
    shown = tapeless("explain", "ops-102k", "--set", "frozen=tokens.*,blocks.0.*").stdout
    assert "(51,008 frozen)" in " ".join(shown.split())


def test_training_says_what_frozen_matrices_are_held_in(tmp_path):
    words = ("train", "ops-102k", "--steps", "1", "--frozen", "tokens.*", "--set")
    for held, shown in (("bfloat16", "float32 with frozen matrices in bfloat16;"), ("float32", "backend, float32;")):
        said = tapeless(*words, f"frozen_precision={held}", folder=tmp_path)
        assert shown in " ".join((said.stdout + said.stderr).split())


def test_training_names_the_precision_to_machines(tmp_path):
    small = ("train", "ops-102k", "--set", "layers=1", "--set", "channels=16", "--steps", "1", "--backend", "reference")
    held = ("--frozen", "tokens.*", "--set", "frozen_precision=bfloat16")
    told = [document(*small, *more, "--out", tmp_path / str(len(more))) for more in ((), held)]
    assert [each["precision"] for each in told] == ["float64", "float64"]
    assert [each["frozen_precision"] for each in told] == [None, "bfloat16"]


def test_explain_one_layer_with_values():
    calls = result_of(
        "explain", "gpt2-4x256", "--set", "layers=3", "--set", "vocab=50", "-T", "8", "--layer", "1", "--values"
    )
    assert {call["section"] for call in calls} == {"blocks.1"}
    norms = [result["norm"] for call in calls for result in call["results"]]
    assert all(0 < norm < float("inf") for norm in norms)
    shown = tapeless("explain", "sunfish", "-T", "8", "--layer", "0", "--values").stdout
    assert "‖" in shown
    assert "attention ↻" in shown  # sunfish recomputes its blocks


def test_explain_folds_the_repeated_blocks_of_a_deep_model():
    shown = tapeless("explain", "gpt2-124m").stdout
    assert "blocks.1 … blocks.10" in shown
    assert "blocks.10 … blocks.1" in shown


def test_explain_survives_a_narrow_terminal():
    shown = tapeless("explain", "ops-102k", columns=60).stdout
    assert max(map(cell_len, shown.splitlines())) <= 60
    assert "…" not in shown  # folded, not cut


def test_check_proves_and_reports_worst_first():
    report = result_of("check", "cllm", "smollm2-135m")
    assert report["ok"] is True
    assert report["worst"] <= TOLERANCES["complex step"]
    assert report["configs"] == report["ops"]["ops"] + report["models"]["models"]
    assert report["models"]["models"] == 6
    assert [wiring["preset"] for wiring in report["wiring"]] == ["cllm", "smollm2-135m"]
    assert not any(wiring["refusal"] for wiring in report["wiring"])
    assert report["ops"]["ops"] == len({op for wiring in report["wiring"] for op in wiring["ops"]})
    assert report["tensors"] == report["ops"]["gradients"] + report["models"]["gradients"]
    assert report["tensors"] == len(report["report"])
    assert report["elements"] == sum(entry["elements"] for entry in report["report"])
    errors = [entry["error"] for entry in report["report"]]
    assert errors == sorted(errors, reverse=True)
    assert report["worst"] == errors[0]


def test_check_fails_with_a_wrong_gradient(tmp_path):
    """A gradient that is wrong ends the command with 1 and is named, worst first."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import sys\n"
        "from tapeless.ops import OPS\n"
        "right = OPS['tanh'].backward\n"
        "def half(dx, dy, x, add=frozenset()):\n"
        "    right(dx, 0.5 * dy, x, add=add) if add else right(dx, 0.5 * dy, x)\n"
        "OPS['tanh'].backward = half\n"
        "from tapeless.cli import main\n"
        "sys.argv = ['tapeless', *sys.argv[1:]]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, wrong, "check", "cllm", "--json"], capture_output=True, text=True)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert report["worst"] > 0.1
    done = subprocess.run([sys.executable, wrong, "check", "cllm"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "gradients are wrong" in done.stdout
    assert "mlp.up.weight" in done.stdout


def test_train_ends_with_one_line(tmp_path):
    done = tapeless("train", "--epochs", "1", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    wanted = {"preset", "backend", "steps", "train_loss", "val_loss", "val_accuracy", "seconds", "run"}
    assert wanted <= set(result)
    assert result["steps"] == 125
    run = tmp_path / result["run"]
    kept = {"config.toml", "metrics.jsonl", "record.jsonl", "snapshots", "checkpoints"}
    assert {path.name for path in run.iterdir()} == kept
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert evaluations[-1]["accuracy"] == result["val_accuracy"]
    steps = [line for line in lines if line["kind"] == "step"]
    assert lines[0]["kind"] == "start"  # what guessing would get
    assert [line["step"] for line in steps] == [1, *range(10, 121, 10), 125]
    wanted = {"loss", "lr", "gradient_norm", "gradient_norms", "update_ratios", "tokens_per_second", "phases"}
    assert wanted <= set(steps[0])
    assert sum(steps[-1]["phases"].values()) == pytest.approx(1)


def test_train_for_people_shows_examples(tmp_path):
    done = tapeless("train", "--epochs", "1", "--set", "layers=1", "--set", "channels=16", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "held-out expressions" in done.stdout
    assert "epoch  1.00" in done.stdout
    assert "tapeless explain" in done.stdout


LONG = "x" * 256  # one more than file systems take
MISTAKES = {
    ("plan", "gpt2-124"): "did you mean 'gpt2-124m'",
    ("explain", "ops-102k", "--layer", "7"): "layers 0 to 1",
    ("explain", "gpt2-4x256", "-T", "2000"): "1024 positions",
    ("plan", "gpt2-4x256", "--set", "heads=3"): "heads=3",
    ("plan", "gpt2-4x256", "--set", "activation=geluu"): "did you mean 'gelu'",
    ("plan", "gpt2-4x256", "-B", "0"): "batch must be",
    ("plan", "gpt2-4x256", "--precision", "float8"): "float8",
    ("plan", "gpt2-4x256", "--backend", "refrence"): "did you mean 'reference'",
    ("check", "opps-102k"): "did you mean 'ops-102k'",
    ("train", "sunfish"): "reads features",
    ("train", "--lr", "0"): "lr must be",
    ("train", "--lr", "1e38"): "at most 1,000,000, not 1e+38",
    ("train", "--epochs", "0"): "epochs must be",
    ("train", "--batch", "5000"): "4,000 examples",
    ("train", "--set", "vocab=10"): "vocab=10",
    ("train", "--clip", "-1"): "clip must be",
    ("train", "--steps", "0"): "steps must be",
    ("train", "--steps", "5", "--epochs", "1"): "choose one",
    ("train", "--schedule", "cosin"): "did you mean 'cosine'",
    ("train", "--warmup", "9", "--steps", "9"): "warmup=9",
    ("train", "--seed", "-1"): "seed must be",
    ("train", "--accumulate", "0"): "accumulate must be",
    ("train", "--set", "keep=0"): "keep must be",
    ("train", "--validation", "1"): "validation must be",
    ("train", "gpt2-4x256", "--data", "nowhere.txt"): "nowhere.txt",
    ("train", "nowhere.toml"): "nowhere.toml",
    ("train", "gpt2-4x256", "--data", "stdlib", "--set", "vocab=100"): "vocabulary of 257",
    ("train", "gpt2-4x256", "--data", "stdlib", "--time", "2000", "--set", "context=1024"): "1024 positions",
    ("train", "ops-102k", "--data", "stdlib"): "answers once",
    ("train", "gpt2-4x256", "--data", "stdlib", "--set", "causal=false"): "with causal=false gpt2-4x256 sees the words",
    ("train", "gpt2-4x256", "--data", "stdlib", "--set", "readout=last"): "leave that out to learn text",
    ("train", "--precision", "float16"): "unknown precision 'float16': did you mean 'bfloat16'?",
    ("train", "--resume", "nowhere"): "nowhere is not there",
    ("train", "--init-from", "nowhere"): "nowhere is not there",
    ("train", "--resume", "a", "--out", "b"): "leave out",
    ("train", "--backend", "gpu"): "unknown backend",
    ("train", "--set", "beta1=1"): "beta1 must be",
    ("sample", "nowhere"): "nowhere is not there",
    ("doctor", "nowhere"): "nowhere",
    ("doctor", LONG): "is too long",
    ("sample", LONG): "is too long",
    ("train", LONG): "unknown preset",
    ("train", "--resume", LONG): "is too long",
    ("train", "--init-from", LONG): "is too long",
    ("train", "--out="): "a path is empty",
    ("import", LONG): "is too long",
    ("export", LONG, "there"): "is too long",
    ("label", "predict", LONG, "-o", "there"): "is too long",
    ("import", "nowhere"): "nowhere",
    ("export", "nowhere", "there"): "nowhere is not there",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_gets_one_sentence_and_leaves_nothing_behind(words, tmp_path):
    done = tapeless(*words, folder=tmp_path)
    assert done.returncode == 2
    assert MISTAKES[words] in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_plan_in_bfloat16():
    plan = result_of("plan", "gpt2-4x256", "-T", "32", "--backend", "reference", "--precision", "bfloat16")
    sizes = {kind: sum(b["bytes"] for b in plan["buffers"] if b["kind"] == kind) for kind in ("weight", "gradient")}
    assert (sizes["weight"], sizes["gradient"]) == (2 * plan["parameters"], 4 * plan["parameters"])
    assert any(buffer["kind"] == "master" for buffer in plan["buffers"])


def test_a_run_folder_is_never_written_into_twice(tmp_path):
    first = tapeless("train", "--epochs", "1", "--set", "channels=8", "--out", "mine", "--json", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    again = tapeless("train", "--epochs", "1", "--out", "mine", folder=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "label"])
def test_help_has_an_example(command):
    done = tapeless(command, "--help")
    assert done.returncode == 0
    assert f"Example: tapeless {command}" in done.stdout
