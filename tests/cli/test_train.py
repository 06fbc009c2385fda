"""Training as a user does it: text in, a run out, stopped and resumed, sampled, exported and imported again."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tapeless.train import checkpoint
from tapeless.train.metrics import read_metrics
from tests.cli.typed import typed

SMALL = (
    "--set",
    "layers=1",
    "--set",
    "channels=16",
    "--set",
    "heads=2",
    "--set",
    "context=32",
    "--time",
    "16",
    "--batch",
    "4",
)


def tapeless(*words, folder, columns=120):
    return typed(*words, folder=folder, COLUMNS=str(columns))


def result_of(*words, folder):
    done = tapeless(*words, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, a run that learned it, and the run's folder."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text").mkdir()
    for number in range(10):
        (folder / "text" / f"{number}.txt").write_text(f"the quick brown fox {number} jumps over the lazy dog\n" * 9)
    done = tapeless(
        "train",
        "gpt2-4x256",
        *SMALL,
        "--data",
        "text",
        "--steps",
        "30",
        "--lr",
        "1e-2",
        "--out",
        "run",
        "--tokenizer",
        "bpe",
        "--set",
        "vocab=300",
        "--set",
        "tensorboard=true",
        "--sample",
        "the quick",
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_end_shows_the_curve_a_sample_and_what_to_do_next(place):
    folder, said = place
    assert "loss over 30 steps" in said
    assert "a sample, from the best checkpoint, of step " in said
    assert said.count("the quick") >= 10  # at every evaluation
    assert "doctor run" in said
    assert "sample run" in said
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {
        "config.toml",
        "metrics.jsonl",
        "record.jsonl",
        "snapshots",
        "checkpoints",
        "data",
        "tokenizer.json",
        "tokenizer_config.json",
        "tensorboard",
    }
    evaluations = [line for line in read_metrics(folder / "run") if line["kind"] == "evaluation"]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] - 0.3


def test_what_it_learned_can_be_sampled(place):
    folder, _ = place
    prompt = "the quick brown fox 3 jumps over the lazy dog\n" * 3
    words = ("sample", "run", "--prompt", prompt, "-n", "40", "--seed", "3")
    first = result_of(*words, folder=folder)
    assert first == result_of(*words, folder=folder) | {"tokens_per_second": first["tokens_per_second"]}
    assert first["slid"] > 0  # 32 positions
    shown = tapeless(*words, folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(prompt + first["text"])
    assert "the window slid" in shown.stdout
    greedy = result_of("sample", "run", "--temperature", "0", "-n", "5", folder=folder)
    assert len(greedy["tokens"]) <= 5


def test_stop_text_is_not_shown(place):
    folder, _ = place
    text = result_of("sample", "run", "--prompt", "the", "-n", "30", "--seed", "1", folder=folder)["text"]
    stop = text[5:8]
    ended = result_of("sample", "run", "--prompt", "the", "-n", "30", "--seed", "1", "--stop", stop, folder=folder)
    assert ended["text"] == text[: text.index(stop)]
    assert "was reached" in ended["ended"]
    shown = tapeless("sample", "run", "--prompt", "the", "-n", "30", "--seed", "1", "--stop", stop, folder=folder)
    assert shown.stdout.splitlines()[0] == ("the" + ended["text"]).splitlines()[0]


def test_out_and_in_again_and_further(place):
    """Export, import, and fine-tuning from what was imported, with the tokenizer that came along."""
    folder, _ = place
    out = result_of("export", "run", "gpt", folder=folder)
    assert out["tokenizer"] is True
    again = result_of("import", "gpt", "--out", "imported", folder=folder)
    assert again["run"] == "imported"
    words = ("--prompt", "the lazy", "-n", "20", "--temperature", "0")
    one = result_of("sample", "run", *words, folder=folder)
    other = result_of("sample", "imported", *words, folder=folder)
    assert one["tokens"] == other["tokens"]
    tuned = result_of(
        "train",
        "--init-from",
        "imported",
        "--data",
        "text",
        "--steps",
        "5",
        "--time",
        "16",
        "--out",
        "tuned",
        folder=folder,
    )
    first = next(line for line in read_metrics(folder / "run") if line["kind"] == "evaluation")
    assert tuned["val_loss"] < first["loss"] - 0.3  # it went on from what was learned
    wrong = tapeless("train", "--init-from", "imported", "--data", "text", "--set", "layers=3", folder=folder)
    assert "layers belongs to the model" in wrong.stderr
    assert "weights and no training" in tapeless("train", "--resume", "imported", folder=folder).stderr


def test_tokens_made_beforehand(place):
    folder, _ = place
    made = result_of("tokenize", "text", "--tokenizer", "bytes", "-o", "tokens", folder=folder)
    assert made
    trained = result_of(
        "train", "gpt2-4x256", *SMALL, "--data", "tokens", "--steps", "4", "--out", "bytes", folder=folder
    )
    assert trained["steps"] == 4
    assert 'tokenizer = "bytes"' in (folder / "bytes" / "config.toml").read_text()
    assert "vocab = 257" in (folder / "bytes" / "config.toml").read_text()
    assert result_of("sample", "bytes", "-n", "3", folder=folder)["run"] == "bytes"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_and_the_run_goes_on(place, tmp_path, number):
    folder, _ = place
    words = ("train", "gpt2-4x256", *SMALL, "--data", str(folder / "tokens"), "--steps", "1000000", "--out", "run")
    if not (folder / "tokens").exists():
        result_of("tokenize", "text", "-o", "tokens", folder=folder)
    running = _start(words, tmp_path)
    running.send_signal(number)
    said, wrong = running.communicate(timeout=60)
    assert running.returncode == 128 + number, wrong
    assert "finishing this batch" in said
    assert f"stopped by {number.name}" in said
    assert "train --resume run" in said
    found, messages = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert not messages
    assert found.step > 0
    more = str(found.step + 3)
    assert result_of("train", "--resume", "run", "--steps", more, folder=tmp_path)["steps"] == found.step + 3


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    """Even when the batch at hand takes for ever: here the update hangs."""
    code = (
        "import sys, time; from tapeless.train import loop; from tapeless.cli import main\n"
        "right = loop.Trainer.batch\n"
        "def slow(self):\n"
        "    if self.step >= 10: print('hanging', flush=True); time.sleep(60)\n"
        "    return right(self)\n"
        "loop.Trainer.batch = slow\n"
        "main()"
    )
    words = ("train", "--epochs", "3", "--backend", "reference", "--out", "run")
    running = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if "hanging" in line:
            break
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=10)
    assert running.returncode == -signal.SIGINT


def test_ctrl_c_in_the_middle_of_a_write_is_no_crash(tmp_path):
    """Python runs the handler inside the write then, and what it prints itself is refused as reentrant."""
    code = (
        "import io, os, signal, sys; from tapeless.train import loop; from tapeless.cli import main\n"
        "right = loop.Trainer.batch\n"
        "class Interrupted(io.RawIOBase):\n"
        "    def writable(self): return True\n"
        "    def write(self, data): os.kill(os.getpid(), signal.SIGINT); return len(data)\n"
        "def batch(self):\n"
        "    if self.step == 10:\n"
        "        from tapeless.cli.common import console\n"
        "        console.file = io.TextIOWrapper(io.BufferedWriter(Interrupted()))\n"
        "        console.file.write('in the middle'); console.file.flush()\n"
        "        console.file = sys.stdout\n"
        "    return right(self)\n"
        "loop.Trainer.batch = batch\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--epochs", "3", "--backend", "reference", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None


def _start(words, folder):
    """In a process of its own, once its first updates are in the metrics."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tapeless", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Where no kernel is compiled yet, a slow machine compiles some thirty before the first update.
    path, deadline = folder / "run" / "metrics.jsonl", time.monotonic() + 600
    try:
        while not (path.exists() and path.stat().st_size):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    except BaseException:
        running.kill()
        running.communicate()
        raise
    return running


def test_training_data_that_fits_no_batch(place):
    folder, _ = place
    (folder / "short.txt").write_text("a few words\nand a few more\n")
    done = tapeless("train", "gpt2-4x256", *SMALL, "--data", "short.txt", "--out", "short", folder=folder)
    assert done.returncode == 2
    assert "needs" in done.stderr
    assert not (folder / "short").exists()


def test_nan_ends_with_a_sentence_and_a_whole_checkpoint(place):
    """A learning rate that no model survives: caught, named, and the weights before it are still there."""
    folder, _ = place
    done = tapeless(
        "train",
        "gpt2-4x256",
        *SMALL,
        "--data",
        "text",
        "--steps",
        "200",
        "--lr",
        "1e6",
        "--schedule",
        "constant",
        "--warmup",
        "0",
        "--clip",
        "0",
        "--out",
        "burnt",
        folder=folder,
    )
    assert done.returncode == 2
    assert "was stopped" in done.stderr
    assert "Traceback" not in done.stderr
    stop = read_metrics(folder / "burnt")[-1]
    assert stop["kind"] == "stop"
    assert "was stopped" in stop["reason"]
    found, _ = checkpoint.newest(folder / "burnt" / "checkpoints")
    assert found is not None


def test_a_narrow_terminal_and_a_log(tmp_path):
    for columns in (30, 50, 200):
        done = tapeless(
            "train", "--epochs", "1", "--set", "channels=8", "--out", f"at{columns}", folder=tmp_path, columns=columns
        )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout  # no terminal, no escapes


def test_json_tells_what_the_screen_would(place):
    folder, _ = place
    shutil.copytree(folder / "run", folder / "damaged")
    newest = max((folder / "damaged" / "checkpoints").glob("step-*")) / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    result = result_of("train", "--resume", "damaged", "--steps", "31", folder=folder)
    assert sum("is damaged" in message for message in result["messages"]) == 1
    again = result_of("train", "--resume", "damaged", folder=folder)  # exits with 0, and says the same
    assert "is complete: all 31 updates are done" in again["messages"][-1]
    assert (again["steps"], again["val_loss"]) == (result["steps"], result["val_loss"])
    shown = tapeless("train", "--resume", "damaged", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "a sample, from the best checkpoint" in shown.stdout
