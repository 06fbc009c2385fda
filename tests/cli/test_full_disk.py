"""A disk that fills up while a person watches: the training waits in memory for an answer, given on a real terminal."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from tapeless.train import checkpoint
from tapeless.train.metrics import read_metrics

# The disk is full, for checkpoints or for what grows (metrics, event files), while a file of that name is there.
CODE = """
import errno, glob, os
from tapeless.cli import main
from tapeless.files import disk, growing
right, add = disk.perform, growing.Growing.add
def perform(operation, *arguments, **named):
    if operation is os.write and os.path.exists("full") and glob.glob("run/checkpoints/.partial-*"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return right(operation, *arguments, **named)
def adding(self, piece):
    if os.path.exists("full for metrics") and self.path.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    add(self, piece)
disk.perform, growing.Growing.add = perform, adding
main()
"""
QUESTION = "or quit? "
SMALL = ("--set", "layers=1", "--set", "channels=8", "--backend", "reference")  # which starts without Numba
NEW = ("train", *SMALL, "--epochs", "4", "--save-every", "250", "--eval-every", "500", "--out", "run")


class Terminal:
    """A training on a terminal of its own."""

    def __init__(self, folder, words):
        self.screen, ours = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
        self.running = subprocess.Popen(
            [sys.executable, "-c", CODE, *words], cwd=folder, stdin=ours, stdout=ours, stderr=ours, env=environment
        )
        os.close(ours)
        self.said = ""

    def until(self, text):
        """Everything said up to and with this text."""
        deadline = time.monotonic() + 120
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            assert self._hear(), self.said
        before, _, self.said = self.said.partition(text)
        return before

    def type(self, keys):
        os.write(self.screen, keys.encode())

    def end(self):
        while self._hear():
            pass
        os.close(self.screen)
        return self.running.wait(timeout=60), self.said

    def _hear(self):
        """Colours and movements aside. False once the other side has closed the terminal."""
        try:
            heard = os.read(self.screen, 65536)
        except OSError:
            return False
        self.said += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", heard.decode(errors="replace"))
        return bool(heard)


@pytest.fixture
def terminal(tmp_path, request):
    (tmp_path / getattr(request, "param", "full")).touch()
    opened = Terminal(tmp_path, NEW)
    yield opened
    opened.running.kill()
    opened.running.wait()


def test_retry_saves_once_there_is_room(terminal, tmp_path):
    assert "No space left on device" in terminal.until(QUESTION)
    terminal.type("r\n")
    assert "No space left on device" in terminal.until(QUESTION)  # there was none yet
    (tmp_path / "full").unlink()
    terminal.type("r\n")
    code, said = terminal.end()
    assert code == 0, said
    assert QUESTION not in said
    found, messages = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert (found.step, messages) == (500, [])


def test_continue_goes_on_and_saves_at_the_next_checkpoint(terminal, tmp_path):
    terminal.until(QUESTION)
    (tmp_path / "full").unlink()
    terminal.type("c\n")
    code, said = terminal.end()
    assert code == 0, said
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 500


def test_quit_leaves_at_once_and_says_that_nothing_is_saved(terminal, tmp_path):
    terminal.until(QUESTION)
    terminal.type("q\n")
    code, said = terminal.end()
    assert code == 1
    assert QUESTION not in said  # it was answered
    assert "stopped as you asked after update 250. It could not be saved." in said
    assert "--resume" not in said
    assert checkpoint.newest(tmp_path / "run" / "checkpoints")[0] is None


def test_quit_names_the_checkpoint_that_is_there(tmp_path):
    code, said = Terminal(tmp_path, NEW).end()
    assert code == 0, said
    (tmp_path / "full").touch()
    terminal = Terminal(tmp_path, ("train", "--resume", "run", "--steps", "1000"))
    assert "The checkpoint of step 500 is intact" in terminal.until(QUESTION)
    terminal.type("q\n")
    code, said = terminal.end()
    assert code == 1
    assert "It could not be saved; update 500 is. Go on from there with:" in said
    assert "train --resume run" in said
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 500


def test_the_end_of_input_is_no_answer(terminal, tmp_path):
    """Ctrl-D. Nobody can be asked: it goes on, as in a log, and tries again at the next checkpoint."""
    terminal.until(QUESTION)
    (tmp_path / "full").unlink()
    terminal.type("\x04")
    code, said = terminal.end()
    assert code == 0, said


# Where it is the metrics that find it full


def recorded(folder):
    return [line["step"] for line in read_metrics(folder / "run") if line["kind"] == "step"]


@pytest.mark.parametrize("terminal", ["full for metrics"], indirect=True)
def test_metrics_that_do_not_fit_are_asked_about_and_none_is_lost(terminal, tmp_path):
    assert "cannot record step 1 in run/metrics.jsonl: No space left on device" in terminal.until(QUESTION)
    terminal.type("r\n")
    assert "No space left on device" in terminal.until(QUESTION)  # there was none yet
    terminal.type("c\n")
    # It is quiet until the next checkpoint, which is saved; then it asks again.
    assert "cannot record step 1" in terminal.until(QUESTION)
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 250
    (tmp_path / "full for metrics").unlink()
    terminal.type("r\n")
    code, said = terminal.end()
    assert code == 0, said
    assert QUESTION not in said
    assert recorded(tmp_path) == [1, *range(10, 501, 10)]


@pytest.mark.parametrize("terminal", ["full for metrics"], indirect=True)
def test_who_leaves_over_the_metrics_still_has_the_weights(terminal, tmp_path):
    terminal.until(QUESTION)
    terminal.type("q\n")
    code, said = terminal.end()
    assert code == 1
    assert "stopped as you asked after update 1. Saved. Go on with:" in said
    assert "train --resume run" in said
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 1


def test_in_a_log_it_goes_on_and_says_so(tmp_path):
    (tmp_path / "full for metrics").touch()
    words = [
        sys.executable,
        "-c",
        CODE.replace("main()", "import tapeless.cli.train\ntapeless.cli.train.RETRY_SECONDS = 0.1\nmain()"),
        *NEW,
    ]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        said = ""
        assert running.stdout is not None
        for line in running.stdout:
            said += line
            if "it waits for that, and saves as soon as it can" in line:  # at the end
                time.sleep(0.5)
                (tmp_path / "full for metrics").unlink()
        assert running.wait() == 0, said
    assert said.count("it waits for that") == 1
    assert said.count("it goes on, and tries again at the next checkpoint") == 2
    assert said.count("cannot record step 1 in") == 3  # what is tried again and again while it waits is told once
    assert recorded(tmp_path) == [1, *range(10, 501, 10)]
