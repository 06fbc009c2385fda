"""`python tools/setup.py run` (or test, chat, docs): makes .venv and installs into it what the Makefile's targets need.

Every target begins with it, on the Python that `make` was given. What is there is looked at, which takes a moment; an
environment that was left half made, that an old Python made, whose Python is gone or that came with a copied folder is
made anew. It is written so that an old Python can read it up to the sentence that refuses it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")  # looked for where the given one is too old
INSTALLED = {
    "run": (".[mkl,explore]", "setting up .venv (NumPy, Numba and, on x86-64, MKL: about half a minute)"),
    "test": (".[mkl,test]", "installing what the tests need (PyTorch and transformers among it: a minute or two)"),
    "chat": (".[mkl,explore,chat]", "installing what conversations need"),
    "docs": (".[mkl,docs]", "installing what the documentation needs"),
}
ASKED = "import sys, importlib.util as i; print('%d.%d' % sys.version_info[:2], bool(i.find_spec('pip')))"


class RefusedError(Exception):
    """What went wrong, as a sentence."""


class Alone:
    """One set-up at a time in a folder. It is the folder itself that is locked, also by whatever is started here: the
    lock ends with the last of them, and nothing is left behind by one that was killed."""

    def __init__(self, root: Path) -> None:
        self._held = os.open(str(root), os.O_RDONLY)
        os.set_inheritable(self._held, True)

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another make sets up .venv in this folder: waiting until it is done", flush=True)
            fcntl.flock(self._held, fcntl.LOCK_EX)
        except OSError:  # a file system that has no locks
            return

    def __exit__(self, *raised: object) -> None:
        os.close(self._held)


class Environment:
    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._unfinished = self.folder / ".unfinished"  # while something is being made or installed

    def make(self) -> None:
        """Nothing where it is sound."""
        wrong = self._wrong()
        if wrong is None:
            return
        _check_version()
        if wrong:
            print(f".venv {wrong}: making it anew", flush=True)
        if self.folder.is_symlink():
            self.folder.unlink()
        elif self.folder.exists():
            with suppress(OSError):
                self.python.unlink()  # first, so that one that is removed in part is known to be none
            shutil.rmtree(str(self.folder))
        self.folder.mkdir()
        self._unfinished.touch()
        # The Python below .venv's own, where that is the one this runs on: it was just removed.
        said = _said_by([getattr(sys, "_base_executable", sys.executable), "-m", "venv", str(self.folder)])
        if said is not None:
            shutil.rmtree(str(self.folder))
            raise RefusedError(
                f"{sys.executable} cannot make an environment ({said}): install its venv module, or name another "
                "Python, as in make PYTHON=python3.12."
            )
        self._unfinished.unlink()

    def _wrong(self) -> str | None:
        """What is wrong with it; "" where there is none, None where nothing is."""
        if not os.path.lexists(str(self.folder)):
            return ""
        if self._unfinished.exists():
            return "is half made"
        try:
            told = subprocess.run(
                [str(self.python), "-I", "-c", ASKED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
            )
            version, pip = os.fsdecode(told.stdout).split()
        except (OSError, subprocess.CalledProcessError, ValueError):
            return "has no Python that runs"
        if tuple(map(int, version.split("."))) < OLDEST:
            return f"has Python {version}, which is too old"
        if pip != "True":
            return "has no pip"
        return None if self._is_of_here() else "belongs to another folder"

    def _is_of_here(self) -> bool:
        """Scripts begin with the path of their Python, so that those of a folder that was moved or copied run another
        one, or none."""
        try:
            with (self.folder / "bin" / "pip").open("rb") as script:
                return os.fsencode(str(self.folder / "bin") + os.sep) in script.read(4096)
        except OSError:
            return False

    def install(self, name: str) -> None:
        """Nothing where this was installed by the pyproject.toml that is there."""
        what, said = INSTALLED[name]
        stamp = self.folder / f".{name}"
        now = hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == now:
            return
        print(said, flush=True)
        self._unfinished.touch()
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", what]
        failed = _said_by(pip, self.root)
        self._unfinished.unlink()
        if failed is not None:
            raise RefusedError(
                f"pip could not install {what}: {failed.rstrip('.')}. Once that is mended (is the network there?), "
                f"run make again."
            )
        stamp.write_text(now)


def _check_version() -> None:
    if sys.version_info[:2] >= OLDEST:
        return
    found = ".".join(map(str, sys.version_info[:3]))
    here = next((name for name in NEWER if shutil.which(name) and _said_by([name, "-c", ""]) is None), None)
    named = f"make PYTHON={here}, which is here" if here else "make PYTHON=/path/to/python3.12"
    raise RefusedError(f"Tapeless needs Python 3.11 or later, and {sys.executable} is {found}: run {named}.")


def _said_by(command: list[str], folder: Path | None = None) -> str | None:
    """None where it went well, else the line of what it said that tells most."""
    done = subprocess.run(
        command,
        cwd=str(folder or ROOT),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,
    )
    if not done.returncode:
        return None
    lines = [line.strip() for line in os.fsdecode(done.stdout).splitlines() if line.strip()]
    errors = [line[len("ERROR:") :].strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [f"it said nothing and ended with {done.returncode}"])[-1]


def main(name: str, root: Path = ROOT) -> int:
    try:
        with Alone(root):
            environment = Environment(root)
            environment.make()
            for each in dict.fromkeys(("run", name)):
                environment.install(each)
    except RefusedError as refused:
        print(refused, file=sys.stderr)
        return 1
    except OSError as error:
        print("cannot set up {}: {}.".format(root / ".venv", error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the next make sets .venv up anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
