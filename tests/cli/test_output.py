"""Standard output that is closed or full, and names that are markup or no UTF-8."""

import json
import os
import subprocess
import sys

import pytest

from tapeless.cli import main
from tapeless.train import checkpoint

TINY = (
    "train",
    "--set",
    "layers=1",
    "--set",
    "channels=8",
    "--set",
    "heads=2",
    "--backend",
    "reference",
    "--steps",
    "4",
    "--batch",
    "8",
)


def tapeless(*words, folder, stdout=subprocess.PIPE):
    return subprocess.run(
        [sys.executable, "-m", "tapeless", *words],
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        env={**os.environ, "COLUMNS": "100"},
    )


@pytest.mark.parametrize(
    "words",
    [("train", "--help"), ("presets", "--json"), ("plan", "ops-102k")],
    ids=" ".join,
)
def test_output_to_a_full_device_or_a_closed_pipe(words, tmp_path):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = tapeless(*words, folder=tmp_path, stdout=full)
    assert (done.returncode, done.stderr) == (1, "error: the output could not be written: No space left on device.\n")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = tapeless(*words, folder=tmp_path, stdout=closed)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_was_closed_from_the_start(tmp_path):
    words = f"{sys.executable} -m tapeless presets >&-"
    done = subprocess.run(["/bin/sh", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = subprocess.run(["/bin/sh", "-c", words.replace("presets", "plan x") + " 2>&-"], cwd=tmp_path)
    assert wrong.returncode == 2


def test_who_took_the_stream_may_use_it_until_the_process_ends(tmp_path):
    """As colorama does, which Numba brings along where it is installed."""
    code = (
        "import atexit, sys; from tapeless.cli import output; output.install(); taken = sys.stdout; "
        "atexit.register(lambda: (taken.isatty(), taken.write('last'), taken.flush())); print('first'); "
        "sys.exit(output.closing_status())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\nlast", "")


def test_a_training_goes_on_without_being_read(tmp_path):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = tapeless(*TINY, "--out", "run", folder=tmp_path, stdout=full)
    assert (done.returncode, done.stderr) == (1, "error: the output could not be written: No space left on device.\n")
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 4


ODD = (b"x[/y]", b"[red]", b"x\\", "[bold]é[/bold]".encode(), b"\xff\xfe")  # what é is depends on the locale


@pytest.mark.parametrize("name", [*map(os.fsdecode, ODD)], ids=ascii)
def test_names_that_are_markup_or_no_utf8(name, tmp_path):
    done = tapeless(*TINY, "--out", name, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert f"The run is in {shown}" in done.stdout
    assert f"doctor '{shown}'" in done.stdout  # to be pasted into a shell


def test_json_stays_json_whatever_the_name(tmp_path):
    name = os.fsdecode(b"a\xff[/b]")
    done = tapeless(*TINY, "--out", name, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == name
    assert "is not there" in tapeless("sample", "no\udcff[/b]", folder=tmp_path).stderr


def test_standard_output_is_left_as_it_was(monkeypatch, capsys):
    """Whoever calls the program in process keeps the stream, open."""
    monkeypatch.setattr(sys, "argv", ["tapeless", "--version"])
    before = sys.stdout
    with pytest.raises(SystemExit):
        main()
    assert sys.stdout is before
    print("still open")
    assert "still open" in capsys.readouterr().out
