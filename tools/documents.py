"""The code in README.md and docs/: Python blocks are run, commands are parsed. `python -m tools.documents --long` runs
what takes longer than a test may (`make docs-code`)."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`tapeless ([a-z][\w-]*)")
# Blocks that are no program, by page and something that stands in them: the rest of the pages' Python runs.
NOT_RUN = {
    ("tour.md", "forward(y, mean, rstd, x, weight, bias, eps)\n"): "the order of arguments",
    ("adding-an-op.md", ""): "the parts of an op's files",
    ("stdlib.md", ""): "what a model wrote",
    ("cuda.md", ""): "needs a GPU",
    ("ten-things.md", ""): "run by a test of its own, on runs that it makes",
    ("trace.md", ""): "run by a test of its own",
}
LONG = {("check-your-own.md", "import kernel")}  # a kernel is timed, and trained with for a hundred updates


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}"

    def matches(self, page: str, words: str) -> bool:
        return self.page == page and words in self.text


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> Iterator[Block]:
    for page in pages():
        text = page.read_text("utf-8")
        for found in FENCE.finditer(text):
            yield Block(page.name, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def programs(long: bool) -> list[Block]:
    """Python that runs: what takes seconds, or the rest."""
    python = [block for block in blocks() if block.language == "python"]
    runs = [block for block in python if not any(block.matches(*entry) for entry in NOT_RUN)]
    return [block for block in runs if any(block.matches(*entry) for entry in LONG) == long]


def commands() -> list[tuple[str, list[str]]]:
    """Every `$ tapeless …` of a block, as a shell takes it apart, with where it stands."""
    found = []
    for block in blocks():
        for line in block.text.splitlines():
            if line.startswith("$ tapeless "):
                found.append((str(block), shlex.split(line[len("$ tapeless ") :], comments=True)))
    return found


def named_commands() -> set[str]:
    """Every command that a sentence names."""
    return {name for page in pages() for name in INLINE.findall(page.read_text("utf-8"))}


def around() -> dict[str, Any]:
    """What a reader has at hand where a block begins: a model and a batch for it."""
    import numpy as np
    import torch

    import tapeless

    model = tapeless.Model("gpt2-4x256", batch=2, time=64, backend="reference", layers=1, channels=16, heads=2)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab, (2, 65))
    return {
        "__name__": "__main__",
        "np": np,
        "torch": torch,
        "tapeless": tapeless,
        "model": model,
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
    }


def run(block: Block) -> str:
    """Run in an empty folder; what it printed."""
    printed, before = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)
        try:
            exec(compile("\n" * block.line + block.text, block.page, "exec"), around())
        finally:
            os.chdir(before)
    return printed.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.documents", description=__doc__)
    parser.add_argument("--long", action="store_true", help="only what takes longer than a test may")
    for block in programs(parser.parse_args().long):
        started = time.perf_counter()
        run(block)
        print(f"{block}: {time.perf_counter() - started:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
