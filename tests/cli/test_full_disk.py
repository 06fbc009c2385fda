"""A disk that fills up while the command trains: it tries again, and then ends with one sentence."""

import subprocess
import sys

import pytest

from tapeless.train import checkpoint
from tapeless.train.metrics import read_metrics

# The disk is full, for checkpoints or for what grows (metrics, event files), while a file of that name is there. With
# "room later" beside it, there is room again after the second attempt.
CODE = """
import errno, glob, os
from tapeless.cli import main
from tapeless.files import disk, growing
right, add = disk.perform, growing.Growing.add
def refuse(name):
    if os.path.exists("room later"):
        os.rename("room later", "room soon")
    elif os.path.exists("room soon"):
        os.remove(name)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def perform(operation, *arguments, **named):
    if operation is os.write and os.path.exists("full") and glob.glob("run/checkpoints/.partial-*"):
        refuse("full")
    return right(operation, *arguments, **named)
def adding(self, piece):
    if os.path.exists("full for metrics") and os.path.exists("run/checkpoints"):
        refuse("full for metrics")
    add(self, piece)
disk.perform, growing.Growing.add, disk.PAUSES = perform, adding, (0.01, 0.01)
main()
"""
SMALL = ("--set", "layers=1", "--set", "channels=8", "--backend", "reference")  # which starts without Numba
NEW = ("train", *SMALL, "--epochs", "4", "--save-every", "250", "--eval-every", "500", "--out", "run")


def trained(folder, *words):
    return subprocess.run(
        [sys.executable, "-c", CODE, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )


def saved(folder):
    return checkpoint.steps(folder / "run" / "checkpoints")


@pytest.mark.parametrize("full", ["full", "full for metrics"])
def test_it_goes_on_once_there_is_room(tmp_path, full):
    (tmp_path / full).touch()
    (tmp_path / "room later").touch()
    done = trained(tmp_path, *NEW)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / full).exists()
    assert saved(tmp_path) == [250, 500]
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert steps == [1, *range(10, 501, 10)]


def test_without_a_checkpoint_it_ends_and_says_so(tmp_path):
    (tmp_path / "full").touch()
    done = trained(tmp_path, *NEW)
    assert done.returncode == 2
    assert "step 250 in run/checkpoints: No space left on device. There is no checkpoint yet; free" in told(done)
    assert saved(tmp_path) == []


@pytest.mark.parametrize("full", ["full", "full for metrics"])
def test_it_ends_and_says_where_the_last_good_checkpoint_is(tmp_path, full):
    done = trained(tmp_path, *NEW)
    assert done.returncode == 0, done.stderr
    (tmp_path / full).touch()
    done = trained(tmp_path, "train", "--resume", "run", "--steps", "1000")
    assert done.returncode == 2
    assert "No space left on device. The last good checkpoint is run/checkpoints/step-00000500" in told(done)
    assert saved(tmp_path) == [250, 500]
    (tmp_path / full).unlink()
    done = trained(tmp_path, "train", "--resume", "run", "--steps", "1000")
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path)[-1] == 1000


def told(done):
    """The sentence, wherever the width of the terminal broke it."""
    return " ".join((done.stdout + done.stderr).split())
