"""The documents say what the commands say: figures that do not depend on the machine are as they are made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.text import Text
from tools.figures.made import FIGURES
from tools.figures.places import PLACE, ROOT, pages, placed

from tapeless.cli.app import app
from tapeless.cli.display import shown_line
from tapeless.tasks.task import Measured
from tapeless.train.loop import Evaluated

STALE = "is stale: `make figures` (or `python -m tools.figures --light`, where nothing is run) makes it again"
PLACES = [pytest.param(page, name, text, id=f"{page.name}: {name}") for page, name, text in placed()]


@pytest.mark.parametrize(("page", "name", "text"), PLACES)
def test_a_figure_is_what_is_made(page: Path, name: str, text: str) -> None:
    figure = FIGURES[name]
    if figure.run:
        assert text.strip(), f"{name} in {page.name} {STALE}"
        for part in figure.holds():
            assert part in " ".join(text.split()), f"{name} in {page.name} {STALE}: {part!r} is not there"
    else:
        assert text == figure.make(), f"{name} in {page.name} {STALE}"


def test_every_figure_stands_somewhere() -> None:
    assert {name for _, name, _ in placed()} == set(FIGURES)


def test_the_training_in_the_readme_is_as_it_is_printed() -> None:
    """Put together again from its own numbers by what prints it."""
    (text,) = [text for page, name, text in placed() if name == "training" and page.name == "README.md"]
    lines = [line for line in text.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    for line in lines:
        epoch, step, loss, held_out, right = map(float, re.findall(r"\d[\d.]*", line.replace(",", "")))
        measured = Measured(held_out, right / 100, train_loss=loss)
        printed = shown_line(Evaluated(int(step), epoch, measured, line.endswith("best"), {}, None), [])
        assert Text.from_markup(printed).plain == line
    assert right >= 99.9


def test_every_marker_has_its_end() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- figures: ") == len(PLACE.findall(text)), page.name


def test_a_figure_that_has_changed_is_noticed() -> None:
    """One more bug in the catalogue, and the number in the README is no longer that."""
    page, name, text = next(place for place in placed() if place[1] == "bugs")
    test_a_figure_is_what_is_made(page, name, text)
    with pytest.raises(AssertionError, match="is stale"):
        test_a_figure_is_what_is_made(page, name, str(int(text) + 1))
    checked = next(place for place in placed() if place[1] == "check")
    with pytest.raises(AssertionError, match="is stale"):
        test_a_figure_is_what_is_made(*checked[:2], checked[2].replace("ops", "op"))


def test_the_page_of_commands_lists_every_command() -> None:
    listed = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    known = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    for name in known:
        assert re.search(rf"^\| `tapeless {name}\b", listed, re.MULTILINE), name
