"""`tapeless help`, `tapeless about` and completion, as a terminal and a shell have them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapeless.cli.app import app
from tapeless.cli.common import console
from tapeless.cli.manual import find_pages, for_terminal, title
from tapeless.errors import TapelessError
from tests.cli.typed import typed


def shown(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_help_lists_what_can_be_read():
    listed = shown("help")
    for name, path in find_pages().items():
        assert (f"\n{name} " in f"\n{listed}") == ("/" not in name)
        assert title(path.read_text("utf-8")), path
    assert {each["topic"] for each in json.loads(shown("help", "--json"))} >= {"training", "tour", "decisions"}


@pytest.mark.parametrize("name", find_pages())
def test_every_page_shows_in_a_terminal(name):
    page = find_pages()[name].read_text("utf-8")
    assert title(page).replace("`", "").split()[0] in shown("help", name)
    assert "<!--" not in for_terminal(page)
    assert "](" not in for_terminal(page).replace("](http", "")


def test_links_become_commands():
    assert for_terminal("see [training.md](training.md#tokens)") == "see `tapeless help training`"
    assert for_terminal("[why](decisions/runs.md)") == "why (`tapeless help decisions/runs`)"
    assert for_terminal("[the tour](tour.md), [a file](../src/x.py)") == "the tour (`tapeless help tour`), a file"


def test_help_of_a_command_is_its_help():
    assert "memory of a training step to the byte" in " ".join(shown("help", "plan").split())
    assert "The options of the command: tapeless doctor --help" in " ".join(shown("help", "doctor").split())


def test_a_slip_is_answered():
    result = CliRunner().invoke(app, ["help", "trainign"])
    assert isinstance(result.exception, TapelessError)
    assert str(result.exception) == "unknown topic 'trainign': did you mean 'training'?"
    listed = str(CliRunner().invoke(app, ["help", "nosuch"]).exception)
    assert listed.count(" doctor,") == 1  # a page and a command


def test_about_fits_a_paste_and_tells_nothing_private(monkeypatch):
    monkeypatch.setattr(console, "_width", 80)
    told = json.loads(shown("about", "--json"))
    assert told["tapeless"]
    assert told["packages"]["numpy"]
    assert told["threads"] >= 1
    for line in shown("about").splitlines():
        assert len(line) <= 80
    assert not told["cache"].startswith(str(Path.home()))


def completed(shell, words, folder):
    variables = {
        "bash": {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": " ".join(words)},
        "fish": {"_TYPER_COMPLETE_ARGS": " ".join(words), "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = typed(folder=folder, **variables, _TAPELESS_COMPLETE=f"complete_{shell}")
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    for name in ("mine-001", "mine-002"):
        (place / "runs" / name).mkdir(parents=True)
        (place / "runs" / name / "config.toml").touch()
    (place / "runs" / "no run").mkdir()
    return place


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pre"], ["presets"]),
        (["plan", "gpt2-1"], ["gpt2-124m", "gpt2-1558m"]),
        (["plan", "runs/mine-001"], ["runs/mine-001"]),
        (["sample", "runs/"], ["runs/mine-001", "runs/mine-002"]),
        (["train", "--init-from", "runs/mine-002"], ["runs/mine-002"]),
        (["help", "optim"], ["optimizers"]),
    ],
)
def test_a_shell_is_offered_what_there_is(shell, words, offered, folder):
    found = completed(shell, ["tapeless", *words], folder)
    for each in offered:
        assert each in found, found
    assert found.count("runs/") == sum(each.startswith("runs/") for each in offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_names_the_program(shell):
    done = typed(_TAPELESS_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert f"complete_{shell}" in done.stdout
    assert "tapeless" in done.stdout
