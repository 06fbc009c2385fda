"""The wheel alone, in an empty environment of every Python that is here: `make wheel-check`; of some of them alone:
`python -m tools.wheel_check 3.13`.

It is built, installed with what it says it needs and nothing else, and used from an empty folder: no checkout in sight.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TEXT = "".join(f"line {number} of a text to learn from\n" for number in range(200))
SMALL = "--set layers=1 --set channels=16 --set heads=2 --time 16 --steps 20"
USES = (
    "tapeless --version",
    "tapeless train --epochs 2",
    f"tapeless train gpt2-4x256 --data notes.txt {SMALL} --out run",
    "tapeless sample run --prompt line --count 20",
    "tapeless plan gpt2-124m",
    "tapeless help training",
    "tapeless about",
    "python -m tapeless presets",
)


def build(folder: Path) -> Path:
    """The wheel, built from this checkout without a download."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def outside() -> dict[str, str]:
    """The environment of somebody who has no checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def use(binaries: Path, folder: Path) -> None:
    """Every use in a row, from a folder with nothing but a text; the first that fails is told with what it said."""
    (folder / "notes.txt").write_text(TEXT)
    for words in USES:
        program, *arguments = words.split()
        done = subprocess.run(
            [binaries / program, *arguments], cwd=folder, env=outside(), capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{words} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> None:
    with TemporaryDirectory() as made:
        wheel = build(Path(made))
        print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
        tried = 0
        for version in sys.argv[1:] or PYTHONS:
            python = f"python{version}"
            there = subprocess.run([python, "-c", ""], capture_output=True, check=False) if which(python) else None
            if there is None or there.returncode:
                print(f"{version}: not here")
                continue
            started = time.perf_counter()
            with TemporaryDirectory() as place:
                environment, empty = Path(place, "environment"), Path(place, "empty")
                empty.mkdir()
                subprocess.run([python, "-m", "venv", environment], check=True)
                install: list[str | Path] = [
                    environment / "bin" / "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    wheel,
                ]
                subprocess.run(install, check=True, env=outside())
                use(environment / "bin", empty)
            tried += 1
            print(f"{version}: {len(USES)} commands, {time.perf_counter() - started:.0f} s")
        if not tried:
            raise SystemExit("none of these Pythons was found")


if __name__ == "__main__":
    main()
