"""A page of the documents that adds something to the package, followed to the letter in a copy of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP = re.compile(
    r"Into `(?P<file>(?:src|tests)/[^`]+)`(?:, (?P<how>before|instead of) `(?P<line>[^`]+)`)?:\n\n"
    r"```(?:python)?\n(?P<code>.*?)```",
    re.DOTALL,
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def follower(text: str, folder: Path) -> Callable[[int], Path]:
    """A copy of the package before the first step, and a way to take the steps up to a place of the page."""
    for part in ("src/tapeless", "tests/bugs", "tests/check"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    steps = list(STEP.finditer(text))

    def follow(place: int) -> Path:
        while steps and steps[0].start() < place:
            _take(folder, steps.pop(0))
        return folder

    return follow


def _take(folder: Path, step: re.Match[str]) -> None:
    file = folder / step["file"]
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if step["how"] is None:
        file.write_text(text + "\n\n" * bool(text) + step["code"], encoding="utf-8")
        return
    line = next(line for line in text.splitlines(keepends=True) if line.startswith(step["line"]))
    kept = line if step["how"] == "before" else ""
    file.write_text(text.replace(line, step["code"] + kept, 1), encoding="utf-8")


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}
    given = [sys.executable, *command]
    return subprocess.run(given, capture_output=True, text=True, env=os.environ | paths | environment, cwd=folder)
