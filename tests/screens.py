"""What a command shows on a terminal of so many columns, without a process of its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from typer.testing import CliRunner

from tapeless.cli.app import app
from tapeless.cli.common import console
from tapeless.errors import TapelessError


@contextmanager
def columns(count: int) -> Iterator[None]:
    before = console._width
    console.width = count
    try:
        yield
    finally:
        console._width = before


def screen(*words: object, width: int = 80, typed: str = "") -> str:
    """What is printed, none of it wider than the terminal."""
    with columns(width):
        done = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    assert done.exit_code == 0, (words, done.output, done.exception)
    widest = max(map(cell_len, done.stdout.splitlines()), default=0)
    assert widest <= width, (words, [line for line in done.stdout.splitlines() if cell_len(line) > width])
    return done.stdout


def document(*words: object):
    done = CliRunner().invoke(app, [*(str(word) for word in words), "--json"])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return json.loads(done.stdout)


def refusal(*words: object) -> str:
    """The one sentence that a mistake is answered with."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, TapelessError), (words, done.output, done.exception)
    return str(done.exception)
