"""Commands as a user types them: each in a process of its own, forked from one that has loaded what they are made of.

Starting Python and loading NumPy, Numba and the rest takes most of a second, and the tests type some three hundred
commands. That the program starts from nothing is held where that is meant: test_installed.py, test_output.py.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PLACE = multiprocessing.get_context("forkserver")
# The commands themselves are not among them: they look at the terminal when they are loaded.
PLACE.set_forkserver_preload(
    [
        "typer",
        "rich.console",
        "rich.live",
        "rich.progress",
        "rich.table",
        "tokenizers",
        "tapeless.backends.cpu",
        "tapeless.bench",
        "tapeless.check",
        "tapeless.train.session",
        "tapeless.train.doctor",
        "tapeless.weights.hub",
        "tests.cli.typed",
    ]
)


def typed(*words: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `tapeless WORDS` prints, says and ends with in the folder; variables are those of its environment."""
    with tempfile.TemporaryDirectory() as place:
        files = [f"{place}/printed", f"{place}/said"]
        environment = {**os.environ, "COLUMNS": "120", **variables}
        process = PLACE.Process(target=_type, args=(words, str(folder or Path.cwd()), environment, files))
        process.start()
        process.join()
        printed, said = (Path(file).read_text(encoding="utf-8", errors="surrogateescape") for file in files)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(words, process.exitcode, printed, said)


def _type(words: tuple[str, ...], folder: str, environment: dict[str, str], files: list[str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    standard = [os.open(os.devnull, os.O_RDONLY)]
    standard += [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files]
    for number, file in enumerate(standard):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        for number, mode in enumerate(("r", "w", "w"))
    )
    sys.argv = ["tapeless", *words]
    from tapeless.cli import main

    main()
