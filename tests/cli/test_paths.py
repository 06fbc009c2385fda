"""Paths on the command line: the home folder, and names that need quotes."""

import shlex
from pathlib import Path

import pytest

from tapeless.cli.common import quoted
from tests.cli.typed import typed

QUICK = (
    "--set",
    "layers=1",
    "--set",
    "channels=16",
    "--set",
    "heads=2",
    "--time",
    "16",
    "--steps",
    "1",
    "--backend",
    "reference",
)


def tapeless(*words, folder):
    return typed(*words, folder=folder, HOME=str(folder / "home"), COLUMNS="200")


def test_the_home_folder_and_a_name_that_needs_quotes(tmp_path):
    """A shell leaves `~` as it is in `--out=~/…`; and what is printed as the next command can be pasted."""
    (tmp_path / "home").mkdir()
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 200)
    done = tapeless("train", "gpt2-4x256", *QUICK, "--data", "text.txt", "--out=~/it's mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "home" / "it's mine"
    assert run.is_dir()
    command = (
        next(line for line in done.stdout.splitlines() if " doctor " in line).removeprefix("next:").split("   ")[0]
    )
    words = shlex.split(command)
    assert words[-1] == str(run)
    assert tapeless("doctor", "~/it's mine", folder=tmp_path).stdout


@pytest.mark.parametrize("name", ["-dash", "two words", "it's", "plain", "$HOME", "a;b"])
def test_a_quoted_path_is_that_path_to_a_shell_and_no_option(name):
    (word,) = shlex.split(quoted(Path(name)))
    assert not word.startswith("-")
    assert Path(word) == Path(name)
