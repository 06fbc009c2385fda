"""Saving that fails or ends at any moment: no checkpoint is lost, and every start afterwards succeeds."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from tapeless import TapelessError
from tapeless.files import disk
from tapeless.train import checkpoint
from tests.train import crash

SOAK = int(os.environ.get("TAPELESS_SOAK", "1"))
KILLS = 20 * SOAK
SMALL = {"weights": 300, "optimizer": 600}
BEST = 1  # the step that is the best in what stands


def save(folder, step, attempt=0, **options):
    return crash.save(folder, step, attempt, SMALL, **options)


# What stands in the folder, and what is then saved: the steps that may be found afterwards follow from the two.


def nothing(folder):
    """No folder yet, nor the one above it."""


def full(folder):
    """As many as are kept, and the best: one goes with the next."""
    for step in (BEST, 2, 3):
        save(folder, step, keep=2, best=step == BEST)


def interrupted(folder):
    """What a kill between the two renames of a replacement left, and half of another checkpoint."""
    full(folder)
    elsewhere = folder / "elsewhere"
    save(elsewhere, 3, 7).rename(folder / "step-00000003.new")
    elsewhere.rename(folder / ".partial-no-process")
    (folder / ".partial-no-process" / "weights.safetensors").write_bytes(b"half")


SCENES = {
    "the first": (nothing, {"step": 1}),
    "the next": (full, {"step": 4, "keep": 2}),
    "a better": (full, {"step": 4, "keep": 2, "best": True}),
    "the same step again": (full, {"step": 3, "attempt": 1, "keep": 2, "best": True}),
    "after an interrupted replacement": (interrupted, {"step": 4, "keep": 2, "best": True}),
}


@pytest.fixture
def memory():
    """A folder in memory where the system offers one: thousands of saves are made in it."""
    offered = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=offered if os.access(offered, os.W_OK) else None) as folder:
        yield Path(folder)


class Killed(BaseException):
    """Nothing of the process runs after this: whatever it still tries comes to nothing."""


class Disk:
    """Performs operations up to the `at`-th, which goes wrong: before it, midway through a write, or after it.

    `error` is what it says; None means the process dies. `lasting`: everything after goes wrong as well.
    """

    def __init__(self, at=0, moment="before", error=None, lasting=False):
        self.at, self.moment, self.error, self.lasting = at, moment, error, lasting
        self.count = 0
        self.names = []
        self.open = {}  # descriptor -> path
        self.unsynced = set()  # inodes of files whose content may be lost with the power
        self.journal = []  # what undoes each change of a folder that is not on the disk yet

    def __call__(self, operation, *arguments):
        self.count += 1
        self.names.append(operation.__name__)
        wrong = self.count == self.at or (self.count > self.at > 0 and (self.lasting or self.error is None))
        if not wrong:
            return self.do(operation, *arguments)
        first = self.count == self.at
        if operation is os.close:
            os.close(*arguments)  # the system lets go of it even when it reports an error
        elif first and self.moment == "midway" and operation is os.write:
            os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif first and self.moment == "after":
            self.do(operation, *arguments)
        if self.error is None:
            raise Killed
        raise OSError(self.error, os.strerror(self.error))

    def do(self, operation, *arguments):
        if operation is os.fsync:  # the real one would only cost time: nobody cuts the power here
            (descriptor,) = arguments
            self.unsynced.discard(os.fstat(descriptor).st_ino)
            self.journal = [entry for entry in self.journal if entry[0] != self.open[descriptor]]
            return None
        replaced = operation is os.rename and arguments[1].is_file() and arguments[1].read_bytes()
        result = operation(*arguments)
        if operation is os.open:
            self.open[result] = arguments[0]
            if arguments[1] & os.O_CREAT:
                self.unsynced.add(os.fstat(result).st_ino)
                self.journal.append((arguments[0].parent, os.unlink, (arguments[0],)))
        elif operation is os.mkdir:
            self.journal.append((arguments[0].parent, shutil.rmtree, (arguments[0],)))
        elif operation is os.rename:
            if replaced:
                self.journal.append((arguments[1].parent, arguments[1].write_bytes, (replaced,)))
            self.journal.append((arguments[1].parent, os.rename, (arguments[1], arguments[0])))
        elif operation in (os.unlink, os.rmdir):
            self.journal = []  # journals keep the order: what came before a removal is on the disk if that is
        return result

    def cut_power(self, folder):
        """What is not known to be on the disk is lost."""
        for here, _, files in os.walk(folder):
            for path in (Path(here, name) for name in files):
                if path.stat().st_ino in self.unsynced:
                    os.truncate(path, path.stat().st_size // 2)
        for _, undo, arguments in reversed(self.journal):
            undo(*arguments)


def scene(name, template):
    prepare, request = SCENES[name]
    template.parent.mkdir(parents=True)
    prepare(template)
    before, messages = checkpoint.newest(template)
    assert messages == []
    return before, request


def attempt_save(monkeypatch, faulty, folder, request):
    """What a save through this disk came to: the TapelessError, Killed, or None."""
    with monkeypatch.context() as patch:
        patch.setattr(disk, "perform", faulty)
        try:
            save(folder, **request)
        except (TapelessError, Killed) as outcome:
            return outcome
    return None


def operations_of(name, memory, monkeypatch):
    template = memory / "counted" / "run"
    _, request = scene(name, template)
    counting = Disk()
    assert attempt_save(monkeypatch, counting, template, request) is None
    return counting.names


def cases(names, template, at_the_end):
    """Every operation and moment of it, each with a copy of what stands. Files are linked: none is ever changed."""
    for at, name in enumerate(names + ["end"] * at_the_end, 1):
        for moment in ("before", "midway", "after") if name == "write" else ("before", "after"):
            parent = template.parent.with_name(f"{at}-{moment}")
            shutil.copytree(template.parent, parent, copy_function=os.link)
            yield at, moment, parent / "run"
            shutil.rmtree(parent)


def identity(found):
    return found and (found.step, found.state["attempt"])


def assert_nothing_lost(folder, before, request, done):
    """The old one or the new one is there and right, and nothing bears a checkpoint's name that is not whole."""
    found, messages = checkpoint.newest(folder)
    assert messages == []
    new = (request["step"], request.get("attempt", 0))
    assert identity(found) in ({new} if done else {new, identity(before)})
    for path in folder.glob("step-*"):
        crash.assert_right(checkpoint.load(path), SMALL)
    if before is not None:
        best, messages = checkpoint.best(folder)
        better = request.get("best") and identity(found) == new
        allowed = {request["step"] if better else BEST}
        if request.get("best") and request["step"] == before.step:
            allowed.add(before.step)  # the step was there already, and may be named before its replacement is
        assert best is not None
        assert best.step in allowed
        assert messages == []


def assert_next_save_succeeds(monkeypatch, folder):
    assert attempt_save(monkeypatch, Disk(), folder, {"step": 9, "keep": 2}) is None
    found, messages = checkpoint.newest(folder)
    assert (identity(found), messages) == ((9, 0), [])
    assert not list(folder.glob(".partial-*"))
    assert not list(folder.glob("*.new"))


@pytest.mark.parametrize("name", SCENES)
def test_the_operations_of_a_save_all_pass_the_seam(name, memory, monkeypatch):
    """Otherwise the tests below would prove less than they say."""
    names = operations_of(name, memory, monkeypatch)
    assert {"open", "write", "fsync", "close", "mkdir", "rename"} <= set(names)
    assert names.count("fsync") >= 6, "four files, their folder, and the folder they are renamed in"
    if SCENES[name][0] is full:
        assert {"unlink", "rmdir"} <= set(names)


@pytest.mark.parametrize(("error", "lasting"), [(ENOSPC, False), (EIO, False), (ENOSPC, True)])
@pytest.mark.parametrize("name", SCENES)
def test_a_failure_at_every_operation(name, error, lasting, memory, monkeypatch):
    names = operations_of(name, memory, monkeypatch)
    template = memory / "template" / "run"
    before, request = scene(name, template)
    refused = 0
    for at, moment, folder in cases(names, template, at_the_end=False):
        outcome = attempt_save(monkeypatch, Disk(at, moment, error, lasting), folder, request)
        assert_nothing_lost(folder, before, request, done=outcome is None)
        if outcome is not None:
            refused += 1
            found, _ = checkpoint.newest(folder)
            message = str(outcome)
            assert f"cannot save the checkpoint at step {request['step']} in {folder}: " in message
            assert os.strerror(error) in message
            assert (f"The last good checkpoint is {found.path}" if found else "There is no checkpoint yet") in message
            assert ("free some space" in message) == (error == ENOSPC)
            assert lasting or not list(folder.glob(".partial-*"))
            assert lasting or not list(folder.glob("*.part"))
        assert_next_save_succeeds(monkeypatch, folder)
    assert refused > len(names), "most operations are needed"


@pytest.mark.parametrize("power", ["kept", "cut"])
@pytest.mark.parametrize("name", SCENES)
def test_the_end_at_every_operation(name, power, memory, monkeypatch):
    """As SIGKILL at that very moment would have it; with the power cut, what was not fsynced is lost too."""
    names = operations_of(name, memory, monkeypatch)
    template = memory / "template" / "run"
    before, request = scene(name, template)
    for at, moment, folder in cases(names, template, at_the_end=True):
        dying = Disk(at, moment)
        outcome = attempt_save(monkeypatch, dying, folder, request)
        assert (outcome is None) == (at == len(names) + 1)
        if power == "cut":
            dying.cut_power(folder.parent)
        assert_nothing_lost(folder, before, request, done=outcome is None)
        assert_next_save_succeeds(monkeypatch, folder)


def test_a_disk_that_takes_less_than_it_is_offered(tmp_path, monkeypatch):
    def sip(operation, *arguments):
        if operation is os.write:
            return os.write(arguments[0], arguments[1][:7])
        return operation(*arguments)

    monkeypatch.setattr(disk, "perform", sip)
    crash.assert_right(checkpoint.load(save(tmp_path, 1)), SMALL)


class Child:
    def __init__(self, folder):
        command = [sys.executable, crash.__file__, str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.first = self.last = self.process.stdout.readline()

    def wait_for_saves(self, count):
        assert self.process.stdout
        for _ in range(count):
            self.last = self.process.stdout.readline() or self.last

    def kill(self):
        """The last line it said, and what it complained of."""
        self.process.send_signal(signal.SIGKILL)
        said, complained = self.process.communicate()
        return (said.splitlines() or [self.last])[-1], complained


def test_sigkill_at_random_moments(tmp_path):
    """Every start finds a whole checkpoint, right in content, and nothing that was reported as saved is lost."""
    moments = random.Random(None if SOAK > 1 else 0)
    folder = tmp_path / "run"
    reported = (0, 0)
    started = time.perf_counter()
    for step in range(4):
        crash.save(tmp_path / "timed", step)
    two_saves = (time.perf_counter() - started) / 2
    for _ in range(KILLS):
        child = Child(folder)
        child.wait_for_saves(moments.randrange(5))  # by its own pace, however busy the machine is
        time.sleep(moments.uniform(0, two_saves))
        line, complained = child.kill()
        assert complained == ""
        assert child.first.startswith("started"), "the start after a kill succeeds"
        word, step, attempt = line.split()
        if word == "saved":
            reported = (int(step), int(attempt))
        found, messages = checkpoint.newest(folder)
        assert messages == []
        assert (identity(found) or (0, 0)) >= reported
        for path in folder.glob("step-*"):
            crash.assert_right(checkpoint.load(path))
        if reported[0] >= 4:
            best, messages = checkpoint.best(folder)
            assert best is not None
            assert (best.step % 4, messages) == (0, [])
            assert best.step >= reported[0] // 4 * 4
        assert len(list(folder.glob(".partial-*"))) <= 2, "those of processes that are no more do not pile up"
        if found:
            reported = identity(found)
    assert reported[0] > KILLS, "the saves went on"
