"""The race itself: what it reports, that it is interleaved, and what it says when it cannot run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tapeless
from tapeless import TapelessError
from tapeless.bench.race import Contender, Work, contenders, race
from tests.screens import columns

SMALL = ("--set", "layers=1", "--set", "channels=16", "--set", "heads=2")


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "COLUMNS": "120", **environment}
    command = [sys.executable, "-m", "tapeless", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_json_has_the_promised_keys():
    done = bench("ops-102k", "--steps", "2", "--peers", "torch-eager", "--threads", "1", "--json", "--profile", *SMALL)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["preset"], result["batch"], result["time"], result["threads"]) == ("ops-102k", 32, 8, 1)
    assert set(result["peers"]) == {"torch_eager"}
    assert set(result["peers_peak_bytes"]) == {"torch_eager"}
    assert result["ratio"] == result["ratios"]["torch_eager"]
    for key in ("ours_ms", "ratio", "step_over_floor", "ours_peak_bytes", "tokens_per_second"):
        assert result[key] > 0, key
    assert result["ours_peak_bytes"] > result["arena_bytes"]
    calls = {row["call"] for row in result["profile"]["calls"]}
    assert {"linear.forward", "linear.backward", "attention.backward", "adamw.forward"} <= calls
    assert result["profile"]["peak_gflops"] > 1
    assert result["profile"]["peak_gbytes"] > 0.1


def test_for_people_without_peers():
    done = bench("ops-102k", "--steps", "1", "--peers", "", "--profile", *SMALL)
    assert done.returncode == 0, done.stderr
    for word in ("ours", "floor", "step over floor", "GFLOP/s", "ceilings"):
        assert word in done.stdout, word


def test_contenders_take_turns_and_none_is_left_behind():
    work = Work("ops-102k", 4, 8, 1, {"layers": 1, "channels": 16, "heads": 2})
    with contenders(["ours", "floor"], work) as runners:
        processes = [runner._process for runner in runners]
        assert list(race(runners, 3)) == [1, 2, 3]
        assert [len(runner.times) for runner in runners] == [3, 3]
        state = Path(f"/proc/{processes[0].pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T"  # stopped: it cannot disturb the others
    assert all(process.poll() is not None for process in processes)


class Fake:
    def __init__(self, name, times):
        self.name, self.times, self.about = name, times, {"blas": "", "arena_bytes": 0}

    def peak_bytes(self):
        return 1


def test_who_has_compiled_is_measured_in_another_process(tmp_path, monkeypatch):
    """In a copy that has the kernels compiled already, where they are here, but for one."""
    copy = tmp_path / "tapeless"
    half_written = shutil.ignore_patterns("*.tmp.*", "*.pyc.*")  # by other tests, and gone a moment later
    shutil.copytree(Path(tapeless.__file__).parent, copy, ignore=half_written)
    for kept in copy.glob("ops/adamw/__pycache__/*.nb?"):
        kept.unlink()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun, start = [], Contender._start

    def counted(self, *given):
        begun.append(self.name)
        start(self, *given)

    monkeypatch.setattr(Contender, "_start", counted)
    work = Work("ops-102k", 4, 8, 1, {"layers": 1, "channels": 16, "heads": 2})
    for _ in range(2):
        with contenders(["ours"], work) as (ours,):
            assert ours.about["compiled"] is False
    assert begun == ["ours"] * 3


def test_a_ratio_compares_turn_with_turn():
    """What slows one turn of everyone leaves the ratio alone."""
    from tapeless.cli.bench import _ratio

    ours, peer = Fake("ours", [1.0, 10.0, 1.0]), Fake("peer", [2.0, 20.0, 2.0])
    assert _ratio(peer, ours) == 2.0  # type: ignore[arg-type]


def test_the_best_peer_is_the_one_with_the_smallest_ratio():
    """Whose median time is the smallest may be another, where the machine was slow for some turns."""
    from tapeless.bench.race import Work
    from tapeless.cli.bench import _result

    ours, floor = Fake("ours", [1.0, 10.0, 1.0]), Fake("floor", [1.0, 10.0, 1.0])
    peers = Fake("torch-eager", [2.0, 20.0, 2.0]), Fake("torch-compile", [2.5, 15.0, 1.9])
    found = _result(Work("ops-102k", 1, 8, 2, {}), [ours, *peers, floor])  # type: ignore[list-item]
    assert found["ratios"] == {"torch_eager": 2.0, "torch_compile": 1.9}
    assert found["ratio"] == 1.9


@pytest.mark.parametrize(
    ("precision", "held", "title"),
    [
        ("float32", None, "float32, 2 threads"),
        ("float32", "float32", "float32, 2 threads"),
        ("float32", "bfloat16", "float32 with our frozen matrices in bfloat16, 2 threads"),
        ("bfloat16", "bfloat16", "time 8, bfloat16, 2 threads"),
    ],
)
def test_what_our_frozen_matrices_are_held_in_is_told(precision, held, title, capsys):
    """The title says so where the precision does not."""
    from tapeless.cli.bench import _print, _result

    work = Work("ops-102k", 1, 8, 2, {"lora": 2, **({"frozen_precision": held} if held else {})}, precision)
    runners = [Fake("ours", [1.0])]
    result = _result(work, runners)  # type: ignore[arg-type]
    assert (result["precision"], result["frozen_precision"]) == (precision, held)
    with columns(120):
        _print(work, runners, result)  # type: ignore[arg-type]
    assert title in capsys.readouterr().out


def test_an_unknown_peer():
    done = bench("ops-102k", "--peers", "torch-eagre")
    assert done.returncode == 2
    assert "did you mean 'torch-eager'" in done.stderr


def test_a_peer_that_is_not_installed(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = bench("ops-102k", "--peers", "torch-eager", *SMALL, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "needs PyTorch: pip install" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("ops-102k", "--threads", "0"), "threads must be"),
        (("ops-102k", "--steps", "0"), "steps must be"),
        (("gpt2-4x256", "-T", "5000"), "1024 positions"),
    ],
)
def test_bad_input(words, answer):
    done = bench(*words)
    assert done.returncode == 2
    assert answer in done.stderr


def test_a_contender_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TapelessError, match="ours could not run"), contenders(["ours"], Work("x", 1, 1, 1, {})):
        pass
