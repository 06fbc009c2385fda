"""The Makefile's set-up: refused by an old Python, gone on with after an interrupt, one at a time, made anew where what
is there cannot be right. Python and pip are scripts here that note what was asked of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOON = 30  # seconds, of which a test that holds needs next to none
FAKE = """#!/bin/sh
# Python {version}, as far as a set-up can tell.
case "$1 $2" in
"-I -c") echo "{version}" True ;;
"-m venv")
    echo venv >> "{root}/log"
    [ -e "{root}/refuse-venv" ] && {{ echo "ensurepip is not available"; exit 1; }}
    mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "#!$3/bin/python" > "$3/bin/pip" ;;
"-m pip")
    for last; do :; done
    echo "pip $last" >> "{root}/log"
    if [ -e "{root}/pause" ]; then touch "{root}/paused"; while [ -e "{root}/pause" ]; do sleep 0.02; done; fi
    [ -e "{root}/refuse-pip" ] && {{ echo "WARNING: try"; echo "ERROR: no numba here"; echo "more"; exit 1; }}
    exit 0 ;;
"tools/setup.py "*)
    shift
    exec "{python}" -S -c "import runpy, sys; sys._base_executable = sys.executable = '$0'
sys.version_info = (*map(int, '{version}'.split('.')), 13)
runpy.run_path('tools/setup.py', run_name='__main__')" "$@" ;;
esac
"""


class Folder:
    def __init__(self, root: Path) -> None:
        (root / "tools").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "tools/setup.py"):
            shutil.copy(ROOT / name, root / name)
        self.root = root

    def python(self, version: str = "3.12") -> Path:
        found = self.root / f"python{version}"
        found.write_text(FAKE.format(version=version, root=self.root, python=sys.executable))
        found.chmod(0o755)
        return found

    def begin(self, target: str = "run", version: str = "3.12") -> "subprocess.Popen[str]":
        asked = ["make", "--no-print-directory", f"PYTHON={self.python(version)}", f".venv/.{target}"]
        environment = {**os.environ, "PATH": "/usr/bin:/bin"}
        environment.pop("MAKEFLAGS", None)
        return subprocess.Popen(
            asked,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def make(self, target: str = "run", version: str = "3.12") -> tuple[int, str, str]:
        with self.begin(target, version) as made:
            said, error = made.communicate(timeout=SOON)
        return made.returncode, said, error

    @property
    def log(self) -> list[str]:
        return (self.root / "log").read_text().splitlines()

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + SOON
        while not (self.root / name).exists():
            assert time.monotonic() < until
            time.sleep(0.01)


RUN, TEST = "pip .[mkl,explore]", "pip .[mkl,test]"


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "a folder")


def test_an_old_python_is_refused_before_anything_is_made(folder):
    code, said, error = folder.make(version="3.10")
    assert (code, said) == (2, "")
    assert f"Tapeless needs Python 3.11 or later, and {folder.root}/python3.10 is 3.10.13: run make PYTHON=" in error
    assert not (folder.root / ".venv").exists()
    assert folder.make()[0] == 0
    assert folder.make(version="3.10")[0] == 0  # what is made needs no other
    assert folder.log == ["venv", RUN]


def test_a_python_that_is_not_there_is_a_sentence(folder):
    folder.python = lambda version: "python9"
    code, _, error = folder.make()
    assert code == 2
    assert error.startswith("python9 is no Python of at least 3.11: name one, as in make PYTHON=python3.12.\n")


def test_what_is_there_is_not_made_again(folder):
    assert "setting up .venv" in folder.make()[1]
    assert folder.make() == (0, "", "")
    assert "installing what the tests need" in folder.make("test")[1]
    assert folder.make("test") == (0, "", "")
    with (folder.root / "pyproject.toml").open("a") as file:
        file.write("\n# something new\n")
    assert folder.make()[0] == 0
    assert folder.log == ["venv", RUN, TEST, RUN]


def old(root):
    (root / ".venv/bin/python").write_text(FAKE.format(version="3.10", root=root, python=sys.executable))


def gone(root):
    (root / ".venv/bin/python").unlink()
    (root / ".venv/bin/python").symlink_to(root / "nothing")


def torn(root):
    (root / ".venv/.unfinished").touch()


def bare(root):
    python = root / ".venv/bin/python"
    python.write_text(python.read_text().replace('" True', '" False'))


def empty(root):
    shutil.rmtree(root / ".venv")
    (root / ".venv").mkdir()


def linked(root):
    (root / ".venv").rename(root / "elsewhere")
    (root / ".venv").symlink_to(root / "elsewhere")
    (root / "elsewhere/bin/pip").write_text("#!/somewhere/else/bin/python\n")


WRONG = {
    old: "has Python 3.10, which is too old",
    gone: "has no Python that runs",
    torn: "is half made",
    bare: "has no pip",
    empty: "has no Python that runs",
    linked: "belongs to another folder",
}


@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: damage.__name__)
def test_what_cannot_be_right_is_made_anew(folder, damage):
    folder.make()
    damage(folder.root)
    code, said, _ = folder.make()
    assert (code, said.splitlines()[0]) == (0, f".venv {WRONG[damage]}: making it anew")
    assert folder.log == ["venv", RUN] * 2
    assert folder.make() == (0, "", "")
    assert damage is not linked or (folder.root / "elsewhere/bin/python").exists()


@pytest.mark.parametrize("move", [shutil.copytree, shutil.move])
def test_a_folder_that_was_copied_or_renamed_gets_an_environment_of_its_own(folder, tmp_path, move):
    folder.make()
    move(folder.root, tmp_path / "another")
    folder.root = tmp_path / "another"
    assert folder.make()[1].startswith(".venv belongs to another folder: making it anew\n")
    assert folder.make() == (0, "", "")


def test_the_second_of_two_at_once_waits_and_says_so(folder):
    (folder.root / "pause").touch()
    first = folder.begin()
    folder.wait_for("paused")
    second = folder.begin()
    assert second.stdout.readline() == "another make sets up .venv in this folder: waiting until it is done\n"
    (folder.root / "pause").unlink()
    for each in (first, second):
        each.communicate(timeout=SOON)
        assert each.returncode == 0
    assert folder.log == ["venv", RUN]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_after_an_interrupt_the_next_one_begins_anew(folder, how):
    (folder.root / "pause").touch()
    first = folder.begin()
    folder.wait_for("paused")
    os.killpg(first.pid, how)
    error = first.communicate(timeout=SOON)[1]
    assert first.returncode != 0
    assert how != signal.SIGINT or "interrupted: the next make sets .venv up anew" in error
    (folder.root / "pause").unlink()
    code, said, _ = folder.make()
    assert (code, said.splitlines()[0]) == (0, ".venv is half made: making it anew")
    assert folder.log == ["venv", RUN] * 2


def test_what_pip_says_is_said_and_the_environment_is_kept(folder):
    (folder.root / "refuse-pip").touch()
    code, _, error = folder.make()
    assert code == 2
    wanted = (
        "pip could not install .[mkl,explore]: no numba here. Once that is mended (is the network there?), run make"
    )
    assert error.startswith(f"{wanted} again.\n")
    (folder.root / "refuse-pip").unlink()
    assert folder.make()[0] == 0
    assert folder.log == ["venv", RUN, RUN]


def test_a_python_that_can_make_no_environment_is_a_sentence(folder):
    (folder.root / "refuse-venv").touch()
    code, _, error = folder.make()
    assert code == 2
    assert "cannot make an environment (ensurepip is not available): install its venv module" in error
    assert not (folder.root / ".venv").exists()


def test_make_help_lists_every_target_the_five_that_matter_first():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, _, others = done.stdout.partition("\n\n")
    listed = [line.split()[1] for line in (*first.splitlines(), *others.splitlines())]
    assert listed[:5] == ["train", "explore", "test", "bench", "docs"]
    assert sorted(listed) == sorted(makefile.partition(".PHONY: ")[2].partition("\n")[0].split())
    assert len(first.splitlines()) == 5
