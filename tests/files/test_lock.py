"""One training at a time in a run, and as many folders as there are trainings."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import ENOLCK, EROFS
from fcntl import flock

import pytest

from tapeless import TapelessError
from tapeless.files import lock
from tapeless.files.lock import hold, was_left
from tapeless.train.metrics import Recorder, read_metrics, twice
from tapeless.train.run import NumberedFolder, making, open_run
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.cli.test_train import _start, tapeless

TINY = {"layers": 1, "channels": 8, "heads": 1}
QUICK = Settings(data="operations", steps=40, eval_every=10, log_every=5, backend="reference", batch=8)
# Holds the lock of a folder, in a child too where it is asked to, until it is killed.
HOLDER = """
import os, sys, time
from pathlib import Path
from tapeless.files.lock import hold
kept = hold(Path(sys.argv[1]))
if sys.argv[2:] == ["fork"]:
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(1)
        os.write(there, b"!")
        time.sleep(600)
    os.read(here, 1)  # the child runs, and has done what it does first of all
    print(child, flush=True)
print("held", flush=True)
time.sleep(600)
"""


def assembled(folder):
    return start(Request("ops-102k", TINY, QUICK), folder)


@contextmanager
def holder(folder, *how):
    """A process that has the lock, and the number of its forked child, where it has one."""
    running = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), *how], stdout=subprocess.PIPE, text=True)
    with running:
        assert running.stdout is not None
        child = int(running.stdout.readline()) if how else None
        assert running.stdout.readline() == "held\n"
        try:
            yield running, child
        finally:
            running.kill()


def test_a_run_in_use_says_by_whom(tmp_path):
    with holder(tmp_path) as (running, _):
        for attempt in (hold, was_left):
            with pytest.raises(TapelessError, match=rf"is in use: process {running.pid} trains it"):
                attempt(tmp_path)
    assert was_left(tmp_path)
    hold(tmp_path).release()  # nobody has to clean up after a kill
    assert not list(tmp_path.iterdir())
    assert not was_left(tmp_path)


def test_the_number_of_a_process_that_is_gone_means_nothing(tmp_path):
    """It may be another's by now: ours, here."""
    (tmp_path / "lock").write_text(f"{os.getpid()} somewhere\n")
    assert hold(tmp_path).kept


def test_a_forked_child_does_not_keep_it(tmp_path):
    with holder(tmp_path, "fork") as (_, child):
        assert child is not None
    os.kill(child, 0)  # it lives
    try:
        assert hold(tmp_path).kept
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_that_ends_does_not_release_it(tmp_path):
    kept = hold(tmp_path)
    child = os.fork()
    if child == 0:
        kept.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(TapelessError, match=f"process {os.getpid()} trains it"):
        hold(tmp_path)


def test_it_is_let_go_with_the_last_who_has_it(tmp_path):
    kept = hold(tmp_path)
    with pytest.raises(TapelessError, match="is in use"):
        hold(tmp_path)
    del kept
    assert not (tmp_path / "lock").exists()
    hold(tmp_path)


def test_a_file_that_was_removed_meanwhile_locks_nothing(tmp_path, monkeypatch):
    """Between opening and locking the one who had it may have left, taking the file along."""
    removed: list[int] = []

    def late(descriptor, how):
        if not removed:
            (tmp_path / "lock").unlink()
            removed.append(1)
        flock(descriptor, how)

    monkeypatch.setattr(lock, "flock", late)
    kept = hold(tmp_path)
    assert kept.kept
    with pytest.raises(TapelessError, match="is in use"):
        hold(tmp_path)


def test_who_is_elsewhere_or_has_not_said_who(tmp_path):
    kept = hold(tmp_path)
    for said, expected in (
        ("77 over-there", "process 77 on over-there trains it"),
        ("", "another process trains it"),
        ("\x00\xff" * 900, "another process trains it"),
        ("minus 5", "another process trains it"),
    ):
        (tmp_path / "lock").write_text(said, encoding="utf-8")
        with pytest.raises(TapelessError, match=expected):
            hold(tmp_path)
    assert kept.kept


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def none(descriptor, how):
        raise OSError(ENOLCK, os.strerror(ENOLCK))

    monkeypatch.setattr(lock, "flock", none)
    session = assembled(tmp_path / "run")
    assert any("knows no locks" in message for message in session.messages)


def test_what_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(TapelessError, match="no regular file"):
        hold(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TapelessError, match="cannot lock the run"):
        hold(tmp_path)
    assert not (tmp_path / "elsewhere").exists()

    def read_only(descriptor, how):
        raise OSError(EROFS, os.strerror(EROFS))

    (tmp_path / "lock").unlink()
    monkeypatch.setattr(lock, "flock", read_only)
    with pytest.raises(TapelessError, match="Read-only"):
        hold(tmp_path)


# In trainings


def test_a_run_is_trained_by_one_at_a_time(tmp_path):
    session = assembled(tmp_path / "run")
    refused = []

    def another(event):
        config = (tmp_path / "run" / "config.toml").read_text()
        with pytest.raises(TapelessError, match=rf"run is in use: process {os.getpid()} trains it") as said:
            resume(tmp_path / "run", {}, {"steps": 50})
        assert (tmp_path / "run" / "config.toml").read_text() == config
        assert open_run(tmp_path / "run").preset() == session.model.preset  # reading needs no lock
        refused.append(said)

    session.train(another, stopping=lambda: "enough" if session.trainer.step == 20 else None)
    assert len(refused) > 20
    again = resume(tmp_path / "run", {}, {})
    again.train()
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert steps == [1, *range(5, 41, 5)]


def test_a_resume_that_is_refused_keeps_nothing(tmp_path):
    session = assembled(tmp_path / "run")
    session.train()
    with pytest.raises(TapelessError, match="more than the 1") as first:
        resume(tmp_path / "run", {}, {"steps": 1})
    with pytest.raises(TapelessError, match="more than the 1"):  # and not: in use
        resume(tmp_path / "run", {}, {"steps": 1})
    assert first.tb is not None
    assert not (tmp_path / "run" / "lock").exists()


def test_the_command_says_so(tmp_path):
    running = _start(
        ("train", "--epochs", "1000", "--set", "channels=8", "--backend", "reference", "--out", "run"), tmp_path
    )
    try:
        done = tapeless("train", "--resume", "run", "--steps", "9", folder=tmp_path)
        assert done.returncode == 2
        assert f"run is in use: process {running.pid} trains it" in done.stderr
    finally:
        running.kill()
        running.communicate()


def test_three_at_once_get_three_folders(tmp_path):
    def made(_):
        session = start(Request("ops-102k", TINY, QUICK), NumberedFolder(tmp_path / "runs", "x"))
        return session.run.folder.name

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(made, range(8))) == [f"x-{number:03}" for number in range(1, 9)]


def test_what_a_kill_before_the_beginning_leaves_is_named(tmp_path):
    """While the text is made into tokens, say: there is a folder and no configuration yet."""
    (tmp_path / "run").mkdir()
    with holder(tmp_path / "run"), pytest.raises(TapelessError, match="is in use"), making(tmp_path / "run"):
        pass
    for attempt in (lambda: making(tmp_path / "run").__enter__(), lambda: open_run(tmp_path / "run")):
        with pytest.raises(TapelessError, match="left that was killed before it began: remove it and start again"):
            attempt()


def test_steps_that_are_recorded_twice_are_noticed(tmp_path):
    recorder = Recorder(tmp_path)
    for step in (10, 10, 20, 30, 30):
        recorder.record("step", step, loss=1.0)
        recorder.record("evaluation", step, loss=1.0)
    assert twice(read_metrics(tmp_path)) == [10, 30]
    assert "has step 10 twice" in Recorder(tmp_path).cut_after(20)[0]
